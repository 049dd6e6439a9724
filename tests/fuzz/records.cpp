// SPDX-License-Identifier: Apache-2.0
// A kind and bytes are not a record, or are a record whose value encodes and decodes to the same
// value.
#include "succession/records/records.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gpushm/error.hpp"
#include "tests/fuzz/require.hpp"

namespace {

using namespace gpushm;

template <typename Kind>
void check(Kind kind, std::span<const std::byte> bytes) {
  decltype(records::decode(kind, bytes)) value;
  try {
    value = records::decode(kind, bytes);
  } catch (const error& why) {
    GPUSHM_REQUIRE(why.code() == errc::invalid_argument);
    return;
  }
  records::encoder encoder;
  GPUSHM_REQUIRE(records::decode(kind, encoder.encode(value)) == value);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) {
    return 0;
  }
  const std::uint8_t kind = data[0];
  const auto* first = reinterpret_cast<const std::byte*>(data);
  // A separate buffer: aligned as a journal's, and without slack after its end.
  const std::vector<std::byte> bytes(first + 1, first + size);
  if (const auto name = records::name_of({kind, 0, 0})) {
    check(name->kind, bytes);
  } else {
    check(static_cast<records::kind>(kind), bytes);
  }
  return 0;
}
