// SPDX-License-Identifier: Apache-2.0
// Any bytes are an ld.so.cache or not; the result contains only names and absolute paths. Of a
// valid cache, only entries of other kinds are left out.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "containers/elf/ld_cache.hpp"
#include "tests/fuzz/require.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // A separate buffer without slack after its end.
  const std::vector<std::uint8_t> bytes(data, data + size);
  const auto entries = gpushm::elf::parse_ld_cache(std::as_bytes(std::span(bytes)));
  const bool whole = gpushm::elf::is_ld_cache(std::as_bytes(std::span(bytes)));
  GPUSHM_REQUIRE(entries || !whole);
  if (!entries) {
    return 0;
  }
  GPUSHM_REQUIRE(entries->size() <= size / 24);
  for (const auto& each : *entries) {
    GPUSHM_REQUIRE(!each.name.empty() && each.name.size() < 4096);
    GPUSHM_REQUIRE(each.path.front() == '/' && each.path.size() < 4096);
  }
  return 0;
}
