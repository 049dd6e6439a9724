// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpushm::inspect {

[[nodiscard]] constexpr bool is_digit(char c) noexcept {
  return c >= '0' && c <= '9';
}
/// Whether a word or name of a log can contain the character.
[[nodiscard]] constexpr bool is_word(char c) noexcept {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

}  // namespace gpushm::inspect
