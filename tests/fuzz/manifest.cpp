// SPDX-License-Identifier: Apache-2.0
// Any text is manifests or has findings, which have positions in it and are printable on one line.
#include <cstddef>
#include <cstdint>
#include <string>

#include "apps/gpushm/k8s/lint.hpp"
#include "tests/fuzz/require.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // A separate buffer without slack after its end.
  const std::string text(reinterpret_cast<const char*>(data), size);
  gpushm::k8s::manifests manifests;
  manifests.add(text, "file");
  const auto findings = gpushm::k8s::lint(manifests);
  GPUSHM_REQUIRE(findings.size() <= gpushm::k8s::report::max_findings);
  for (const auto& each : findings) {
    GPUSHM_REQUIRE(each.line >= 1 && static_cast<std::size_t>(each.line) <= size + 1);
    GPUSHM_REQUIRE(each.column >= 1);
    GPUSHM_REQUIRE(!each.rule.empty() && !each.why.empty());
  }
  return 0;
}
