// SPDX-License-Identifier: Apache-2.0
#include "inspect/explain/index.hpp"

#include <algorithm>
#include <utility>

namespace gpushm::inspect {

std::size_t pattern_index::list_of(std::string_view first) noexcept {
  const auto byte = [&](std::size_t i) {
    return static_cast<std::uint32_t>(static_cast<unsigned char>(first[i]));
  };
  const std::uint32_t key = byte(0) | (byte(1) << 8U) | (byte(2) << 16U);
  return (key * 2654435761U) >> 18U;
}

pattern_index::pattern_index(std::vector<pattern> patterns)
    : patterns_(std::move(patterns)), by_key_(lists) {
  for (std::size_t i = 0; i < patterns_.size(); ++i) {
    const std::string_view first = patterns_[i].first_part();
    if (first.size() < key_bytes) {
      short_.push_back(static_cast<std::uint32_t>(i));
    } else {
      by_key_[list_of(first)].push_back(static_cast<std::uint32_t>(i));
      used_.set(list_of(first));
    }
  }
}

std::vector<pattern_index::match> pattern_index::find_all(const explain_text& text,
                                                          std::size_t most) const {
  struct progress {
    std::size_t count = 0;
    std::size_t next = 0;  // matches do not overlap
  };
  std::vector<progress> state(patterns_.size());
  std::vector<match> matches;
  const auto attempt = [&](std::size_t index, std::size_t begin) {
    progress& one = state[index];
    if (one.count == most || begin < one.next) {
      return;
    }
    if (const auto where = text.match_at(patterns_[index], begin)) {
      matches.push_back({index, *where});
      ++one.count;
      one.next = where->end;
    }
  };
  const std::string_view lower = text.lower();
  for (std::size_t begin = 0; begin + key_bytes <= lower.size(); ++begin) {
    const std::size_t list = list_of(lower.substr(begin, key_bytes));
    if (used_.test(list)) {
      for (const std::uint32_t index : by_key_[list]) {
        attempt(index, begin);
      }
    }
  }
  for (const std::uint32_t index : short_) {
    const std::string_view first = patterns_[index].first_part();
    for (auto begin = lower.find(first);
         begin != std::string_view::npos && state[index].count < most;
         begin = lower.find(first, begin + 1)) {
      attempt(index, begin);
    }
  }
  std::stable_sort(matches.begin(), matches.end(), [](const match& a, const match& b) {
    return a.where.begin != b.where.begin ? a.where.begin < b.where.begin : a.pattern < b.pattern;
  });
  return matches;
}

}  // namespace gpushm::inspect
