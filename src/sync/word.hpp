// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace gpushm::sync {

// The word of a timeline (docs/adr/0032): its value, or one of two terminal words.

/// The largest value.
inline constexpr std::uint64_t max_value = (std::uint64_t{1} << 62U) - 1;
/// The first byte of a word, the most significant one, alone makes it terminal: so a store of one
/// byte ends a timeline, whatever the other bytes are at that moment.
inline constexpr std::uint8_t ended_byte = 0x7F;
inline constexpr std::uint8_t moved_byte = 0x7E;
/// The signaler has died, or has closed the timeline.
inline constexpr std::uint64_t ended_word = (std::uint64_t{1} << 63U) - 1;
/// Another process signals the timeline now, with another word.
inline constexpr std::uint64_t moved_word =
    (std::uint64_t{moved_byte} << 56U) | 0xFF'FFFF'FFFF'FFFFU;

enum class word_kind : std::uint8_t {
  value,
  moved,
  ended,
  invalid,  ///< stored by a hostile or broken signaler
};
[[nodiscard]] constexpr word_kind kind_of(std::uint64_t word) noexcept {
  if (word <= max_value) {
    return word_kind::value;
  }
  const auto first = static_cast<std::uint8_t>(word >> 56U);
  return first == moved_byte   ? word_kind::moved
         : first == ended_byte ? word_kind::ended
                               : word_kind::invalid;
}

[[nodiscard]] constexpr bool is_terminal(std::uint64_t word) noexcept {
  return kind_of(word) == word_kind::ended || kind_of(word) == word_kind::moved;
}

/// Whether the word releases a wait for `value`: the cyclic comparison of
/// CU_STREAM_WAIT_VALUE_GEQ. Both terminal words release a wait for any valid value.
[[nodiscard]] constexpr bool releases(std::uint64_t word, std::uint64_t value) noexcept {
  return static_cast<std::int64_t>(word - value) >= 0;
}

/// The 32 bits that flags may use. Both terminal words have all of them.
inline constexpr std::uint64_t all_flags = 0xFFFF'FFFFU;
static_assert((ended_word & all_flags) == all_flags && (moved_word & all_flags) == all_flags);

/// The condition of a wait: a value, or any of some flags. Both terminal words meet all conditions.
struct condition {
  std::uint64_t value = 0;
  bool any_bit = false;

  // NOLINTNEXTLINE(google-explicit-constructor): the usual case
  constexpr condition(std::uint64_t at_least) noexcept : value(at_least) {}
  [[nodiscard]] static constexpr condition any_of(std::uint64_t bits) noexcept {
    condition result(bits);
    result.any_bit = true;
    return result;
  }
  /// The comparison of CU_STREAM_WAIT_VALUE_AND, or that of `releases`.
  [[nodiscard]] constexpr bool is_met_by(std::uint64_t word) const noexcept {
    return any_bit ? (word & value) != 0 : releases(word, value);
  }
};

}  // namespace gpushm::sync
