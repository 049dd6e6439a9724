// SPDX-License-Identifier: Apache-2.0
#include "tests/support/process/child.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>

#include "tests/support/process/harness_error.hpp"
#include "tests/support/process/proc_counters.hpp"
#include "tests/support/process/programs.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm_testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

spawn_options shell(const std::string& script) {
  spawn_options options;
  options.argv = {"/bin/sh", "-c", script};
  return options;
}

TEST(child, waits_for_lines_in_order) {
  auto process = child::start(shell("echo one; echo two; echo other >&2; read x; echo got $x"));
  EXPECT_EQ(process.wait_for_line("t.o", seconds(5)), "two");
  EXPECT_EQ(process.wait_for_line("other", seconds(5), stream::err), "other");
  process.write("three\n");
  EXPECT_EQ(process.wait_for_line("^got", seconds(5)), "got three");
  EXPECT_EQ(process.wait_exit(seconds(5)), exited(0));
}

TEST(child, missing_line_error_has_output) {
  auto process = child::start(shell("echo something else"));
  try {
    process.wait_for_line("ready", seconds(5));
    FAIL() << "must throw";
  } catch (const harness_error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("something else"));
  }
}

TEST(child, missing_line_ends_at_deadline) {
  auto process = child::start({.argv = {"/bin/cat"}});
  EXPECT_THROW(process.wait_for_line("ready", milliseconds(10)), harness_error);
  EXPECT_THROW(process.wait_exit(milliseconds(10)), harness_error);
}

TEST(child, reports_statuses_and_signals) {
  EXPECT_EQ(run_program(shell("exit 7")).status, exited(7));
  auto process = child::start({.argv = {"/bin/cat"}});
  process.kill(SIGTERM);
  EXPECT_EQ(process.wait_exit(seconds(5)), killed_by(SIGTERM));
}

TEST(child, missing_program_is_reported) {
  const auto result = run_program({.argv = {"/nonexistent/program"}});
  EXPECT_EQ(result.status, exited(127));
  EXPECT_THAT(result.err, ::testing::HasSubstr("/nonexistent/program: No such file"));
}

TEST(child, collects_more_output_than_a_pipe_holds) {
  const auto result = run_program(shell("head -c 1000000 /dev/zero | tr '\\0' x"));
  EXPECT_EQ(result.out.size(), 1'000'000U);
}

TEST(child, environment_directory_and_limit_are_passed) {
  const temp_dir directory;
  auto options = shell("echo $GPUSHM_ONE/$HOME; pwd; ulimit -n");
  options.env = {{"GPUSHM_ONE", "1"}, {"HOME", ""}};
  options.working_directory = directory.path();
  options.open_files = 77;
  EXPECT_EQ(run_program(options).out, "1/\n" + directory.path() + "\n77\n");
}

TEST(child, kills_its_process_group) {
  pid_t grandchild = 0;
  {
    auto process = child::start(shell("sleep 600 & echo $!; wait"));
    grandchild = std::stoi(process.wait_for_line("[0-9]+", seconds(5)));
    EXPECT_TRUE(process_is_alive(grandchild));
  }
  EXPECT_TRUE(eventually([&] { return !process_is_alive(grandchild); }, seconds(20)));
}

TEST(child, moved_from_owns_nothing) {
  auto first = child::start({.argv = {"/bin/cat"}});
  auto second = std::move(first);
  EXPECT_FALSE(first.running());  // NOLINT(bugprone-use-after-move): the state is specified
  EXPECT_TRUE(second.running());
}

TEST(temp_dir, is_removed_with_contents) {
  std::string path;
  {
    const temp_dir directory(0755);
    path = directory.path();
    std::filesystem::create_directories(directory / "a/b");
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(programs, finds_own_programs_and_their_tree) {
  const auto victim = own_program("harness_victim");
  EXPECT_TRUE(std::filesystem::path(victim).is_absolute());
  EXPECT_EQ(victim.rfind(tree_of_program(victim) + "/", 0), 0U);
  EXPECT_EQ(tree_of_program("/opt/gpushm/bin/gpushm"), "/opt/gpushm");
  EXPECT_THROW((void)own_program("no such program"), harness_error);
}

TEST(eventually, retries_until_true_or_deadline) {
  int calls = 0;
  EXPECT_TRUE(eventually([&] { return ++calls == 3; }, seconds(20)));
  EXPECT_EQ(calls, 3);
  EXPECT_FALSE(eventually([] { return false; }, milliseconds(5)));
}

}  // namespace
}  // namespace gpushm_testing
