// SPDX-License-Identifier: Apache-2.0
// `gpushm k8s lint` as a program: output, JSON, exit status.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/process/child.hpp"
#include "tests/support/process/programs.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm_tests {
namespace {

using gpushm_testing::exited;
using gpushm_testing::run_result;
using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class k8s_lint_cli : public ::testing::Test {
 protected:
  [[nodiscard]] static run_result run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {gpushm_testing::own_program("gpushm"), "k8s"});
    return gpushm_testing::run_program({.argv = std::move(arguments)}, std::chrono::seconds(60));
  }
  [[nodiscard]] std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(directory_ / name, std::ios::binary) << text;
    return directory_ / name;
  }

  gpushm_testing::temp_dir directory_;
  std::string bad_ = write("bad.yaml",
                           "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec:\n"
                           "  hostIPC: true\n");
  std::string good_ = write("good.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\n");
};

TEST_F(k8s_lint_cli, findings_are_printed_and_fail) {
  const auto ran = run({"lint", bad_});
  EXPECT_EQ(ran.status, exited(1));
  EXPECT_EQ(ran.out,
            bad_ +
                ":5:3: Pod x: Sharing GPU memory needs no host IPC namespace: memory descriptors "
                "and legacy handles work between private ones; gpushm.dev/ipc in the limits of "
                "both pods does the same for unchanged programs, including CUDA's IPC events "
                "[host-ipc]\n"
                "    hostIPC: false\n"
                "1 object, 1 workload: 1 finding\n");
  EXPECT_THAT(ran.err, IsEmpty());
}

TEST_F(k8s_lint_cli, no_findings_is_success) {
  const auto ran = run({"lint", good_});
  EXPECT_EQ(ran.status, exited(0));
  EXPECT_EQ(ran.out, "1 object, 1 workload: 0 findings\n");
}

TEST_F(k8s_lint_cli, unread_kind_is_not_a_success) {
  const std::string engine =
      write("engine.yaml", "apiVersion: example.com/v1\nkind: Engine\nmetadata: {name: e}\n");
  const auto ran = run({"lint", good_, engine});
  EXPECT_EQ(ran.status, exited(1));
  EXPECT_THAT(ran.out, HasSubstr("engine.yaml:2:1: Engine e: No pod was found in this object"));
  EXPECT_THAT(ran.out, HasSubstr("2 objects, 1 workload: 1 finding\n"));
  const auto accepted = run({"lint", "--ignore-kind", "Engine", good_, engine});
  EXPECT_EQ(accepted.status, exited(0));
  EXPECT_EQ(accepted.out, "2 objects, 1 workload: 0 findings\n");
}

TEST_F(k8s_lint_cli, json_output) {
  const auto ran = run({"lint", "--json", bad_, good_});
  EXPECT_EQ(ran.status, exited(1));
  const json document = json::parse(ran.out);
  EXPECT_EQ(document.at("objects"), 2);
  const json found = document.at("findings").at(0);
  EXPECT_EQ(found.at("file"), bad_);
  EXPECT_EQ(found.at("line"), 5);
  EXPECT_EQ(found.at("rule"), "host-ipc");
  EXPECT_EQ(found.at("write"), json::array({"hostIPC: false"}));
}

TEST_F(k8s_lint_cli, dash_reads_standard_input) {
  auto child = gpushm_testing::child::start(
      {.argv = {gpushm_testing::own_program("gpushm"), "k8s", "lint", "-"}});
  child.write("apiVersion: v1\nkind: Pod\nspec: {hostPID: true}\n");
  child.close_stdin();
  EXPECT_EQ(child.wait_exit(std::chrono::seconds(60)), exited(1));
  EXPECT_THAT(child.text(gpushm_testing::stream::out),
              ::testing::StartsWith("-:3:8: Pod without a name: "));
}

TEST_F(k8s_lint_cli, unreadable_file_is_reported) {
  const std::string missing = directory_ / "missing";
  const auto ran = run({"lint", missing});
  EXPECT_EQ(ran.status, exited(1));
  EXPECT_EQ(ran.err,
            "gpushm: read manifest \"" + missing +
                "\": read: No such file or directory (ENOENT) (check the path)\n");
  const auto large = run({"lint", write("large", std::string((4UL << 20U) + 1, ' '))});
  EXPECT_EQ(large.status, exited(1));
  EXPECT_THAT(large.err,
              HasSubstr("the file is larger than 4 MiB (split its documents into several files)"));
}

TEST_F(k8s_lint_cli, usage_error_exits_with_2) {
  EXPECT_EQ(run({}).status, exited(2));
  EXPECT_EQ(run({"lint"}).status, exited(2));
  const auto ran = run({"lnt", good_});
  EXPECT_EQ(ran.status, exited(2));
  EXPECT_THAT(ran.err, HasSubstr("did you mean lint?"));
}

}  // namespace
}  // namespace gpushm_tests
