// SPDX-License-Identifier: Apache-2.0
// What gpushm-brokerd and gpushm-keeper write to their log, and what a probe prints.
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <regex>
#include <sstream>
#include <string>

#include "gpushm/gpushm.hpp"
#include "tests/support/brokerd/brokerd.hpp"
#include "tests/support/process/child.hpp"
#include "tests/support/process/patient_client.hpp"
#include "tests/support/process/programs.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace {

using namespace std::chrono_literals;
using gpushm_testing::stream;

gpushm::segment make(gpushm::client& client, const std::string& name) {
  gpushm::segment result = client.create(
      name, {.size_bytes = 4096, .device = "host", .lifetime = gpushm::lifetime::persistent});
  result.publish();
  return result;
}

TEST(broker_log, says_what_a_start_continues_and_why_it_was_needed) {
  const gpushm_testing::temp_dir directory{0755};
  gpushm_testing::brokerd broker(directory / "run", {"--domain", "default"});
  const auto next_line = [&](const std::string& pattern) {
    return broker.keeper().wait_for_line(pattern, 60s, stream::err);
  };
  auto member = gpushm_testing::patient_client(directory / "run/d/default/socket");
  const gpushm::segment one = make(member, "one");
  const gpushm::segment two = make(member, "two");
  ASSERT_TRUE(broker.kill());
  EXPECT_NE(next_line("gpushm-keeper: the program was killed \\(SIGKILL\\)"), "");
  EXPECT_NE(next_line("info    gpushm-brokerd: continues the last broker: domains 1, segments 2, "
                      "connections 1, journals [0-9.]+ [KM]?i?B"),
            "");
  broker.keeper().kill(SIGTERM);
  broker.keeper().wait_exit(60s);

  const std::regex format(
      R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (debug  |info   |warning|error  ) gpushm-(brokerd|keeper): .*)");
  std::istringstream input(broker.keeper().output().text(stream::err));
  int versions = 0;
  for (std::string line; std::getline(input, line);) {
    EXPECT_TRUE(std::regex_match(line, format)) << line;
    versions += line.find(": version ") != std::string::npos ? 1 : 0;
  }
  EXPECT_EQ(versions, 3) << "the keeper, and two brokers";
}

// The kubelet shows it as the reason why the pod is not ready.
TEST(broker_log, of_a_probe_is_a_line_with_cause_and_next_step) {
  const gpushm_testing::temp_dir directory{0755};
  const std::string run_dir = directory / "run";
  const auto result = gpushm_testing::run_program(
      {.argv = {gpushm_testing::own_program("gpushm-brokerd"), "check", "--run-dir", run_dir}},
      60s);
  EXPECT_EQ(result.status.code, 1);
  EXPECT_EQ(result.err,
            "gpushm-brokerd: ask gpushm-brokerd \"" + run_dir +
                "/private/socket\": the socket does not exist (check that gpushm-brokerd runs, "
                "with this run directory)\n");
}

}  // namespace
