// SPDX-License-Identifier: Apache-2.0
// Any text is a CDI document or has problems; a document that is written and read again is equal.
#include <cstddef>
#include <cstdint>
#include <string>

#include "containers/cdi/document/parse.hpp"
#include "containers/cdi/document/versions.hpp"
#include "containers/cdi/document/write.hpp"
#include "tests/fuzz/require.hpp"

namespace {

namespace cdi = gpushm::cdi;

void require_harmless(const gpushm::yaml::problem& problem) {
  GPUSHM_REQUIRE(!problem.rule.empty() && !problem.text.empty());
  GPUSHM_REQUIRE(problem.line >= 0 && (problem.column > 0) == (problem.line > 0));
  for (const char c : gpushm::yaml::to_string(problem)) {
    GPUSHM_REQUIRE(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f);
  }
}

void require_same_again(const cdi::document& content, cdi::format form) {
  const std::string text = cdi::to_text(content, form);
  const cdi::parsed again = cdi::parse(text, "again");
  GPUSHM_REQUIRE(again.problems.empty() && again.warnings.empty());
  GPUSHM_REQUIRE(again.content == content);
  GPUSHM_REQUIRE(cdi::to_text(again.content, form) == text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // A separate buffer without slack after its end.
  const std::string text(reinterpret_cast<const char*>(data), size);
  const cdi::parsed read = cdi::parse(text, "file");
  for (const gpushm::yaml::problem& each : read.problems) {
    require_harmless(each);
  }
  for (const gpushm::yaml::problem& each : read.warnings) {
    require_harmless(each);
  }
  if (!read.problems.empty()) {
    return 0;
  }
  GPUSHM_REQUIRE(!read.content.devices.empty());
  GPUSHM_REQUIRE(cdi::version_index(read.content.version) >=
                 cdi::version_index(cdi::minimum_version(read.content)));
  require_same_again(read.content, cdi::format::yaml);
  require_same_again(read.content, cdi::format::json);
  return 0;
}
