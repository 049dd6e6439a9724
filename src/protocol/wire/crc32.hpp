// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace gpushm::wire {

namespace crc32_detail {

/// The effect of each byte on the remainder, for the reflected polynomial 0x04C11DB7.
constexpr std::array<std::uint32_t, 256> make_table() noexcept {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < table.size(); ++byte) {
    std::uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) {
      value = (value & 1U) != 0 ? (value >> 1U) ^ 0xEDB88320U : value >> 1U;
    }
    table[byte] = value;
  }
  return table;
}

inline constexpr std::array<std::uint32_t, 256> table = make_table();

}  // namespace crc32_detail

/// CRC-32 (ISO-HDLC, as in zlib) of `bytes`, or of the data whose CRC is `before` followed by
/// `bytes`. Protects against accidents, not against attackers.
[[nodiscard]] constexpr std::uint32_t crc32(std::span<const std::byte> bytes,
                                            std::uint32_t before = 0) noexcept {
  std::uint32_t value = ~before;
  for (const std::byte each : bytes) {
    value =
        crc32_detail::table[(value ^ std::to_integer<std::uint32_t>(each)) & 0xFFU] ^ (value >> 8U);
  }
  return ~value;
}

}  // namespace gpushm::wire
