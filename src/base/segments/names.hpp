// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace gpushm::base {

/// Whether `text` is well-formed UTF-8, as defined by `first_character` in base/text.hpp.
[[nodiscard]] bool is_utf8(std::string_view text) noexcept;

/// Throws `errc::invalid_argument` unless `name` is a valid segment name: 1 to 255 bytes of UTF-8
/// without control or invisible characters (`is_control_or_invisible` in base/text/text.hpp),
/// because names are displayed, and two that look the same must be the same. "@" is reserved: a
/// future suffix of names may begin with it. `operation` is named in the error.
void check_name(std::string_view operation, std::string_view name);

/// The smallest number of insertions, deletions, replacements and swaps of adjacent bytes that turn
/// `a` into `b`, or `limit + 1` if it is above `limit`.
[[nodiscard]] std::size_t edit_distance(std::string_view a, std::string_view b, std::size_t limit);

}  // namespace gpushm::base
