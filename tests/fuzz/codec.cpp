// SPDX-License-Identifier: Apache-2.0
// Bytes are not a message, or are a message that encodes and decodes to the same message.
#include "protocol/wire/codec.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/fuzz/require.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gpushm;
  const auto* first = reinterpret_cast<const std::byte*>(data);
  // A separate buffer: aligned as the broker's, and without slack after its end.
  const std::vector<std::byte> packet(first, first + size);
  const auto message = wire::decode(packet);
  if (!message) {
    return 0;
  }
  std::vector<std::byte> again;
  try {
    again = wire::encode(*message);
  } catch (const error& why) {
    // Text that fields of a packet share is encoded separately for each field.
    GPUSHM_REQUIRE(why.code() == errc::message_too_large);
    return 0;
  }
  const auto reread = wire::decode(again);
  GPUSHM_REQUIRE(reread && *reread == *message);
  return 0;
}
