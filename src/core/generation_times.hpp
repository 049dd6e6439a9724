// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <span>

#include "core/deadlines.hpp"
#include "gpushm/types.hpp"

namespace gpushm::core {

/// When generations were given out, for all segments of a domain in a few bytes: they ascend, so a
/// few of them with their times are enough. The times are right to a second for new segments, and
/// to some per cent of the age for old ones.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class generation_times {
 public:
  struct creation {
    time_point at;
    bool is_known = true;  ///< false: before `at`, by an earlier process
  };

  /// The first call: generations before `next` are of earlier processes. Later ones: `next` is
  /// about to be given out. Precondition: neither argument decreases.
  void note(gpushm::generation next, time_point now) noexcept {
    constexpr std::chrono::seconds shortest{1};
    if (size_ != 0 && now - known_.at(size_ - 1).at < shortest) {
      return;
    }
    if (size_ == known_.size()) {
      forget_one(now);
    }
    known_.at(size_++) = {next, now};
  }
  [[nodiscard]] bool is_empty() const noexcept { return size_ == 0; }
  /// Precondition: not `is_empty`.
  [[nodiscard]] creation of(gpushm::generation generation) const noexcept {
    const auto entries = std::span(known_).first(size_);
    const auto after = std::upper_bound(
        entries.begin(),
        entries.end(),
        generation,
        [](gpushm::generation value, const entry& each) { return value < each.first; });
    return after == entries.begin() ? creation{entries.front().at, false}
                                    : creation{(after - 1)->at};
  }

 private:
  struct entry {
    gpushm::generation first = 0;
    time_point at{};
  };

  /// The one without which ages are the least wrong. Not the first one and the last one.
  void forget_one(time_point now) noexcept {
    const auto error_without = [&](std::size_t i) {
      const auto gap = std::chrono::duration<double>(known_.at(i + 1).at - known_.at(i - 1).at);
      const auto age = std::chrono::duration<double>(now - known_.at(i).at);
      return gap.count() / std::max(age.count(), 1.0);
    };
    std::size_t least = 1;
    for (std::size_t i = 2; i + 1 < size_; ++i) {
      least = error_without(i) < error_without(least) ? i : least;
    }
    for (std::size_t i = least; i + 1 < size_; ++i) {
      known_.at(i) = known_.at(i + 1);
    }
    --size_;
  }

  std::array<entry, 128> known_{};  ///< in ascending order
  std::size_t size_ = 0;
};

}  // namespace gpushm::core
