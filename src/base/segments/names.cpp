// SPDX-License-Identifier: Apache-2.0
#include "base/segments/names.hpp"

#include <algorithm>
#include <numeric>

#include "base/text/text.hpp"
#include "gpushm/error.hpp"
#include "gpushm/types.hpp"

namespace gpushm::base {

bool is_utf8(std::string_view text) noexcept {
  while (!text.empty()) {
    const std::size_t length = first_character(text).length;
    if (length == 0) {
      return false;
    }
    text.remove_prefix(length);
  }
  return true;
}

void check_name(std::string_view operation, std::string_view name) {
  const auto fail = [&](std::string_view cause) {
    throw error(errc::invalid_argument,
                operation,
                {},
                cause,
                "a name is 1 to 255 bytes of UTF-8 without \"@\", control or invisible characters");
  };
  if (name.empty()) {
    fail("the segment's name is empty");
  }
  if (name.size() > max_name_bytes) {
    fail("the segment's name has " + std::to_string(name.size()) + " bytes");
  }
  if (!is_utf8(name)) {
    fail("the segment's name is not UTF-8");
  }
  for (std::string_view rest = name; !rest.empty();) {
    const character next = first_character(rest);
    if (is_control_or_invisible(next.value)) {
      fail("the segment's name contains the control or invisible character " +
           printable(rest.substr(0, next.length)));
    }
    rest.remove_prefix(next.length);
  }
  if (name.find('@') != std::string_view::npos) {
    fail("the segment's name contains \"@\", which is reserved");
  }
}

std::size_t edit_distance(std::string_view a, std::string_view b, std::size_t limit) {
  const std::size_t longer = std::max(a.size(), b.size());
  if (longer - std::min(a.size(), b.size()) > limit) {
    return limit + 1;
  }
  // Optimal string alignment over three rows.
  std::vector<std::size_t> before(b.size() + 1);
  std::vector<std::size_t> previous(b.size() + 1);
  std::vector<std::size_t> current(b.size() + 1);
  std::iota(previous.begin(), previous.end(), std::size_t{0});
  // Cells further than `limit` from the diagonal exceed the limit, and so does everything after two
  // rows that exceed it.
  const std::size_t past = limit + 1;
  std::size_t nearest_before = 0;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    const std::size_t first = i > limit ? i - limit : 1;
    const std::size_t last = limit < b.size() - std::min(i, b.size()) ? i + limit : b.size();
    current[first - 1] = first == 1 ? i : past;
    std::size_t nearest = current[first - 1];
    for (std::size_t j = first; j <= last; ++j) {
      const std::size_t replaced = previous[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      current[j] = std::min({previous[j] + 1, current[j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        current[j] = std::min(current[j], before[j - 2] + 1);
      }
      nearest = std::min(nearest, current[j]);
    }
    if (last < b.size()) {
      current[last + 1] = past;
    }
    if (nearest > limit && nearest_before > limit) {
      return past;
    }
    nearest_before = nearest;
    before.swap(previous);
    previous.swap(current);
  }
  return std::min(previous[b.size()], limit + 1);
}

}  // namespace gpushm::base
