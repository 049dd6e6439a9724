// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace gpushm::base {

/// Well-formed UTF-8 as RFC 3629 has it: no surrogates, no overlong forms, nothing above U+10FFFF.
[[nodiscard]] bool is_utf8(std::string_view text) noexcept;

/// Throws `errc::invalid_argument` unless `name` may name a segment: 1 to 255 bytes of UTF-8
/// without control characters. `operation` goes into the error.
void check_name(std::string_view operation, std::string_view name);

/// Fewest insertions, deletions, replacements and swaps of neighbours (bytes) that turn `a` into
/// `b`, or `limit + 1` when it takes more than `limit`.
[[nodiscard]] std::size_t edit_distance(std::string_view a, std::string_view b, std::size_t limit);

}  // namespace gpushm::base
