// SPDX-License-Identifier: Apache-2.0
// Metadata of a buffer are refused, or give a buffer that fits into the slot and can be written
// again unchanged. Each input is tried unchanged and with a matching header; otherwise hardly any
// input would be read.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "gstreamer/metadata.hpp"
#include "tests/fuzz/require.hpp"

namespace {

using namespace gpushm::gstreamer;

void try_to_read(const std::vector<std::byte>& bytes, std::uint64_t slot_bytes) {
  item_metadata value;
  if (decode(bytes, slot_bytes, value) != metadata_fault::none) {
    GPUSHM_REQUIRE(value == item_metadata{});
    return;
  }
  GPUSHM_REQUIRE(value.size <= slot_bytes);
  GPUSHM_REQUIRE(value.caps.size() <= max_caps_bytes);
  const auto again = encode(value);
  GPUSHM_REQUIRE(again.size() == bytes.size());
  item_metadata same;
  GPUSHM_REQUIRE(decode(again, slot_bytes, same) == metadata_fault::none && same == value);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto* const first = reinterpret_cast<const std::byte*>(data);
  // A separate buffer without slack after its end.
  std::vector<std::byte> bytes(first, first + size);
  constexpr std::uint64_t some_slot = 1'000'000;
  try_to_read(bytes, some_slot);
  if (size >= metadata_header_bytes && size <= max_metadata_bytes) {
    const std::vector<std::byte> good = encode({});
    for (const std::size_t at : {0U, 1U, 2U, 3U, 4U, 5U, 52U, 53U, 54U, 55U}) {
      bytes[at] = good[at];
    }
    bytes[6] = static_cast<std::byte>(size - metadata_header_bytes);
    bytes[7] = {};
    try_to_read(bytes, some_slot);
    try_to_read(bytes, ~std::uint64_t{0});
  }
  return 0;
}
