// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace gpushm::base {

/// Well-formed UTF-8, as `first_character` in base/text.hpp reads it.
[[nodiscard]] bool is_utf8(std::string_view text) noexcept;

/// Throws `errc::invalid_argument` unless `name` may name a segment: 1 to 255 bytes of UTF-8
/// without control or invisible characters (`is_control_or_invisible` in base/text.hpp): a name is
/// shown to people, and two that look the same must be the same. Without "@": what may follow a
/// name one day begins with it. `operation` goes into the error.
void check_name(std::string_view operation, std::string_view name);

/// Fewest insertions, deletions, replacements and swaps of neighbours (bytes) that turn `a` into
/// `b`, or `limit + 1` when it takes more than `limit`.
[[nodiscard]] std::size_t edit_distance(std::string_view a, std::string_view b, std::size_t limit);

}  // namespace gpushm::base
