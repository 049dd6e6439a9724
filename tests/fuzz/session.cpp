// SPDX-License-Identifier: Apache-2.0
// Messages of every kind, as several clients of a broker without I/O send them.
#include <algorithm>

#include "tests/fuzz/require.hpp"
#include "tests/fuzz/session_world.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static_cast<void>(gpushm_fuzz::descriptor_pool::instance());
  // Counted for each input: libFuzzer opens pipes to its symbolizer.
  const std::size_t before = gpushm_fuzz::open_descriptors();
  {
    gpushm_fuzz::session_world world;
    gpushm_fuzz::script script({data, std::min<std::size_t>(size, 8192)});
    world.run(script);
  }
  GPUSHM_REQUIRE(gpushm_fuzz::open_descriptors() == before);
  return 0;
}
