// SPDX-License-Identifier: Apache-2.0
// Any text is explained or not; the output never contains text that could harm a terminal.
#include "inspect/explain/explain.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "tests/fuzz/require.hpp"

namespace {

void require_harmless(const std::string& text) {
  for (const char c : text) {
    GPUSHM_REQUIRE(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f);
  }
  GPUSHM_REQUIRE(text.size() < 1024);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // A separate buffer without slack after its end.
  const std::string text(reinterpret_cast<const char*>(data), size);
  gpushm::inspect::situation here;
  here.facts = {"pid-1", "in-container", "some-gpus-hidden"};
  for (const auto& each : gpushm::inspect::explain(text, here)) {
    require_harmless(each.line);
    require_harmless(each.found);
    GPUSHM_REQUIRE(each.line_number >= 1);
    GPUSHM_REQUIRE(!each.causes.empty());
    double sum = 0;
    for (const auto& one : each.causes) {
      sum += one.share;
    }
    GPUSHM_REQUIRE(sum > 0.999 && sum < 1.001);
  }
  return 0;
}
