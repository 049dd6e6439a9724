// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/segment/checksum.hpp"

#if defined(__aarch64__) && !defined(__clang__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include <array>
#include <cstring>

namespace gpushm::cli {

namespace {

constexpr std::uint32_t polynomial = 0x82F63B78;  // reversed bits of 0x1EDC6F41

using slice_tables = std::array<std::array<std::uint32_t, 256>, 8>;

// tables[k][b] is the effect of byte b on the state after k more bytes.
constexpr slice_tables make_tables() {
  slice_tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t state = byte;
    for (int bit = 0; bit < 8; ++bit) {
      state = (state & 1U) != 0 ? state >> 1U ^ polynomial : state >> 1U;
    }
    tables[0][byte] = state;
  }
  for (std::size_t k = 1; k < tables.size(); ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t before = tables[k - 1][byte];
      tables[k][byte] = before >> 8U ^ tables[0][before & 0xFFU];
    }
  }
  return tables;
}

constexpr slice_tables tables = make_tables();

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) std::uint32_t crc32c_instruction(
    std::uint32_t state, std::span<const std::byte> bytes) noexcept {
  std::uint64_t wide = state;
  std::size_t i = 0;
  for (; i + sizeof(std::uint64_t) <= bytes.size(); i += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, sizeof word);
    wide = __builtin_ia32_crc32di(wide, word);
  }
  auto narrow = static_cast<std::uint32_t>(wide);
  for (; i < bytes.size(); ++i) {
    narrow = __builtin_ia32_crc32qi(narrow, std::to_integer<std::uint8_t>(bytes[i]));
  }
  return narrow;
}
bool has_crc32c_instruction() noexcept {
  return __builtin_cpu_supports("sse4.2") != 0;
}
#elif defined(__aarch64__) && !defined(__clang__)
// clang 14 has other names for these builtins; releases are compiled by g++.
__attribute__((target("+crc"))) std::uint32_t crc32c_instruction(
    std::uint32_t state, std::span<const std::byte> bytes) noexcept {
  std::size_t i = 0;
  for (; i + sizeof(std::uint64_t) <= bytes.size(); i += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, sizeof word);
    state = __builtin_aarch64_crc32cx(state, word);
  }
  for (; i < bytes.size(); ++i) {
    state = __builtin_aarch64_crc32cb(state, std::to_integer<std::uint8_t>(bytes[i]));
  }
  return state;
}
bool has_crc32c_instruction() noexcept {
  return (::getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
}
#else
std::uint32_t crc32c_instruction(std::uint32_t state, std::span<const std::byte> bytes) noexcept {
  return detail::crc32c_portable(state, bytes);
}
bool has_crc32c_instruction() noexcept {
  return false;
}
#endif

}  // namespace

std::uint32_t detail::crc32c_portable(std::uint32_t state,
                                      std::span<const std::byte> bytes) noexcept {
  std::size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    std::uint32_t next = 0;
    for (std::size_t k = 0; k < 8; ++k) {
      const auto mixed = k < 4 ? state >> (8U * k) & 0xFFU : 0U;
      next ^= tables[7 - k][mixed ^ std::to_integer<std::uint32_t>(bytes[i + k])];
    }
    state = next;
  }
  for (; i < bytes.size(); ++i) {
    state = state >> 8U ^ tables[0][(state ^ std::to_integer<std::uint32_t>(bytes[i])) & 0xFFU];
  }
  return state;
}

void crc32c::add(std::span<const std::byte> bytes) noexcept {
  static const bool has_instruction = has_crc32c_instruction();
  state_ =
      has_instruction ? crc32c_instruction(state_, bytes) : detail::crc32c_portable(state_, bytes);
}

}  // namespace gpushm::cli
