// SPDX-License-Identifier: Apache-2.0
#include "base/names.hpp"

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "gpushm/error.hpp"
#include "gpushm/types.hpp"

namespace gpushm::base {

bool is_utf8(std::string_view text) noexcept {
  std::size_t i = 0;
  while (i < text.size()) {
    const auto lead = static_cast<std::uint8_t>(text[i]);
    std::size_t length = 0;
    std::uint32_t point = 0;
    std::uint32_t smallest = 0;
    if (lead < 0x80U) {
      ++i;
      continue;
    }
    if ((lead & 0xE0U) == 0xC0U) {
      length = 2, point = lead & 0x1FU, smallest = 0x80;
    } else if ((lead & 0xF0U) == 0xE0U) {
      length = 3, point = lead & 0x0FU, smallest = 0x800;
    } else if ((lead & 0xF8U) == 0xF0U) {
      length = 4, point = lead & 0x07U, smallest = 0x10000;
    } else {
      return false;
    }
    if (text.size() - i < length) {
      return false;
    }
    for (std::size_t k = 1; k < length; ++k) {
      const auto next = static_cast<std::uint8_t>(text[i + k]);
      if ((next & 0xC0U) != 0x80U) {
        return false;
      }
      point = (point << 6U) | (next & 0x3FU);
    }
    if (point < smallest || point > 0x10FFFF || (point >= 0xD800 && point <= 0xDFFF)) {
      return false;
    }
    i += length;
  }
  return true;
}

void check_name(std::string_view operation, std::string_view name) {
  const auto fail = [&](std::string_view cause) {
    throw error(errc::invalid_argument,
                operation,
                {},
                cause,
                "a name is 1 to 255 bytes of UTF-8 without control characters");
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
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; };
  if (std::any_of(name.begin(), name.end(), is_control)) {
    fail("the segment's name has a control character");
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
  // Off the diagonal by more than `limit` is past the limit, so is all that follows two such rows.
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
