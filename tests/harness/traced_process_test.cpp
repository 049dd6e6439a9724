// SPDX-License-Identifier: Apache-2.0
#include "tests/support/ptrace/traced_process.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <csignal>

#include "base/process/signals.hpp"
#include "tests/support/process/child.hpp"
#include "tests/support/process/harness_error.hpp"
#include "tests/support/process/programs.hpp"

namespace gpushm_testing {
namespace {

using std::chrono::seconds;

spawn_options victim(const std::string& mode) {
  spawn_options options;
  options.argv = {own_program("harness_victim"), mode};
  return options;
}

TEST(traced_process, counts_the_calls_between_the_marks) {
  const auto result = traced_run(victim("plain"), 0);
  EXPECT_TRUE(result.began);
  EXPECT_TRUE(result.ended);
  EXPECT_FALSE(result.killed);
  EXPECT_EQ(result.calls, 5U);
  EXPECT_EQ(exit_status_of(result.wait_status), exited(0));
}

TEST(traced_process, kills_at_the_entry_of_the_kth_call) {
  const std::vector<std::string> calls{"getppid", "getuid", "geteuid", "getgid", "getegid"};
  for (std::size_t k = 1; k <= calls.size(); ++k) {
    const auto result = traced_run(victim("plain"), k);
    EXPECT_TRUE(result.killed);
    EXPECT_FALSE(result.ended);
    EXPECT_EQ(result.calls, k);
    EXPECT_EQ(result.fatal_call, calls.at(k - 1));
    EXPECT_TRUE(result.fatal_in_main);
    EXPECT_EQ(exit_status_of(result.wait_status), killed_by(SIGKILL));
  }
}

TEST(traced_process, call_number_past_window_kills_nothing) {
  const auto result = traced_run(victim("plain"), 6);
  EXPECT_FALSE(result.killed);
  EXPECT_TRUE(result.ended);
  EXPECT_EQ(exit_status_of(result.wait_status), exited(0));
}

TEST(traced_process, counts_the_calls_of_all_threads) {
  const auto result = traced_run(victim("threads"), 0);
  EXPECT_TRUE(result.ended);
  EXPECT_GE(result.calls, 11U);  // two threads with five calls each, and the creation of the thread
}

TEST(traced_process, kills_all_threads_whichever_makes_the_call) {
  bool other_thread = false;
  for (std::uint64_t k = 1;; ++k) {
    const auto result = traced_run(victim("threads"), k);
    if (!result.killed) {
      break;
    }
    ASSERT_LT(k, 100U);
    other_thread = other_thread || !result.fatal_in_main;
    EXPECT_EQ(exit_status_of(result.wait_status), killed_by(SIGKILL)) << k;
  }
  EXPECT_TRUE(other_thread);
}

TEST(traced_process, forked_children_stay_alive) {
  traced_process process(victim("fork"), 2);
  const auto result = process.wait_end(seconds(10));
  EXPECT_TRUE(result.killed);
  // The child has the other ends of the pipes; its input ends when this object is destroyed.
  EXPECT_FALSE(process.output().read_to_end(clock::now()));
}

TEST(traced_process, other_children_are_not_traced) {
  auto other = child::start({.argv = {"/bin/cat"}});
  EXPECT_TRUE(traced_run(victim("plain"), 1).killed);
  EXPECT_TRUE(other.running());
  other.close_stdin();
  EXPECT_EQ(other.wait_exit(seconds(5)), exited(0));
}

TEST(traced_process, hanging_program_is_reported_and_killed) {
  traced_process process({.argv = {"/bin/cat"}}, 0);
  const auto pid = process.pid();
  EXPECT_THROW((void)process.wait_end(std::chrono::milliseconds(50)), harness_error);
  EXPECT_TRUE(eventually([&] { return gpushm::base::signal_process(pid, 0) != 0; }, seconds(20)));
}

}  // namespace
}  // namespace gpushm_testing
