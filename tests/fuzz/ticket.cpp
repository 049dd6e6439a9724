// SPDX-License-Identifier: Apache-2.0
// Bytes are not a ticket, or are a ticket that can be written again unchanged. Each input is tried
// unchanged and with a matching header; otherwise hardly any input would pass the checksum.
#include "protocol/wire/ticket.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gpushm/error.hpp"
#include "protocol/wire/crc32.hpp"
#include "tests/fuzz/require.hpp"

namespace {

using namespace gpushm;

constexpr std::size_t header_bytes = 20;

void put(std::vector<std::byte>& target, std::size_t offset, std::uint32_t value) {
  for (std::size_t i = 0; i < 4; ++i) {
    target[offset + i] = static_cast<std::byte>(value >> (8 * i) & 0xFFU);
  }
}

/// Sets magic, length and checksum; keeps the versions.
void fit_header(std::vector<std::byte>& bytes) {
  constexpr std::array<char, 8> magic{'G', 'P', 'U', 'S', 'H', 'M', 'D', '\n'};
  for (std::size_t i = 0; i < magic.size(); ++i) {
    bytes[i] = static_cast<std::byte>(magic[i]);
  }
  put(bytes, 12, static_cast<std::uint32_t>(bytes.size()));
  const std::span<const std::byte> all(bytes);
  put(bytes, 16, wire::crc32(all.subspan(header_bytes), wire::crc32(all.first(16))));
}

void try_to_read(const std::vector<std::byte>& bytes) {
  wire::ticket value;
  try {
    value = wire::decode_ticket(bytes);
  } catch (const error& why) {
    GPUSHM_REQUIRE(why.code() == errc::invalid_ticket || why.code() == errc::unsupported_version);
    GPUSHM_REQUIRE(why.operation() == "read ticket");
    GPUSHM_REQUIRE(!why.cause().empty());
    return;
  }
  const auto again = wire::encode_ticket(value);
  GPUSHM_REQUIRE(again.size() <= bytes.size());
  GPUSHM_REQUIRE(wire::decode_ticket(again) == value);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto* first = reinterpret_cast<const std::byte*>(data);
  // A separate buffer without slack after its end.
  std::vector<std::byte> bytes(first, first + size);
  try_to_read(bytes);
  if (size >= header_bytes) {
    fit_header(bytes);
    try_to_read(bytes);
  }
  return 0;
}
