// SPDX-License-Identifier: Apache-2.0
// Any bytes are a shared library or not; a SONAME never names a file in another directory, and
// forged headers do not cause large reads.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "containers/elf/loading.hpp"
#include "tests/fuzz/require.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::size_t read_bytes = 0;
  const gpushm::elf::read_at read = [&](std::uint64_t offset,
                                        std::span<std::byte> into) -> std::size_t {
    read_bytes += into.size();
    if (offset >= size) {
      return 0;
    }
    const std::size_t got = std::min(into.size(), size - static_cast<std::size_t>(offset));
    if (got > 0) {
      std::memcpy(into.data(), data + offset, got);
    }
    return got;
  };
  const auto facts = gpushm::elf::read_elf(read);
  GPUSHM_REQUIRE(read_bytes < 128 * 1024);
  read_bytes = 0;
  const auto loading = gpushm::elf::read_loading(read);
  GPUSHM_REQUIRE(read_bytes < 1024 * 1024);
  GPUSHM_REQUIRE(loading.has_value() == facts.has_value());
  if (facts) {
    GPUSHM_REQUIRE(facts->native || facts->soname.empty());
    GPUSHM_REQUIRE(loading->native == facts->native && loading->soname == facts->soname);
    GPUSHM_REQUIRE(loading->native || loading->libraries.empty());
    GPUSHM_REQUIRE(facts->soname.find('/') == std::string_view::npos);
    GPUSHM_REQUIRE(facts->soname.size() < 256 && facts->soname != "..");
  }
  return 0;
}
