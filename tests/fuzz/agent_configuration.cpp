// SPDX-License-Identifier: Apache-2.0
// Any text is a configuration or has problems with positions; parsing the canonical file of a
// configuration gives the same configuration.
#include <cstddef>
#include <cstdint>
#include <string>

#include "kubernetes/device_plugin/configuration/configuration.hpp"
#include "tests/fuzz/require.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gpushm::device_plugin;
  // A separate buffer without slack after its end.
  const std::string text(reinterpret_cast<const char*>(data), size);
  const checked_configuration checked = check_configuration(text, "file");
  for (const configuration_problem& each : checked.problems) {
    GPUSHM_REQUIRE(each.line >= 1 && each.column >= 1);
    GPUSHM_REQUIRE(!each.text.empty());
  }
  if (!checked.problems.empty()) {
    return 0;
  }
  for (const replicated_resource& each : checked.content.slicing.resources) {
    GPUSHM_REQUIRE(each.replicas >= 2 && each.replicas <= 50'000);
    GPUSHM_REQUIRE(!resource_name_problem(each.name));
    GPUSHM_REQUIRE(each.rename.empty() || !resource_name_problem(each.rename));
  }
  if (!checked.content.slicing.resources.empty()) {
    const checked_configuration again =
        check_configuration(canonical_time_slicing(checked.content.slicing), "file");
    GPUSHM_REQUIRE(again.problems.empty());
    GPUSHM_REQUIRE(again.content.warnings.empty());
    GPUSHM_REQUIRE(again.content.slicing == checked.content.slicing);
  }
  return 0;
}
