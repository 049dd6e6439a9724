// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace gpushm::base {

/// Appends two lower-case digits.
inline void append_hex(std::string& out, std::uint8_t byte) {
  constexpr std::string_view digits = "0123456789abcdef";
  out += digits[byte >> 4U];
  out += digits[byte & 0xFU];
}

/// Two digits per byte.
template <typename Bytes>
[[nodiscard]] std::string hex_text(const Bytes& bytes) {
  std::string text;
  for (const auto each : bytes) {
    append_hex(text, static_cast<std::uint8_t>(each));
  }
  return text;
}

/// 64-bit FNV-1a as 16 digits: protects against accidents, not against attackers.
[[nodiscard]] inline std::string fnv1a_text(std::string_view text) {
  constexpr std::uint64_t start = 0xcbf29ce484222325;
  constexpr std::uint64_t factor = 0x100000001b3;
  std::uint64_t sum = start;
  for (const char each : text) {
    sum = (sum ^ static_cast<unsigned char>(each)) * factor;
  }
  std::string digits;
  for (unsigned int shift = 64; shift > 0; shift -= 8) {
    append_hex(digits, static_cast<std::uint8_t>(sum >> (shift - 8)));
  }
  return digits;
}

}  // namespace gpushm::base
