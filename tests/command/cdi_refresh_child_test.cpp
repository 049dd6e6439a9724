// SPDX-License-Identifier: Apache-2.0
// Driver queries of `gpushm cdi refresh` in a child process: results, errors, crashes, hangs.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>

#include "apps/gpushm/cdi/refresh_child.hpp"
#include "gpushm/error.hpp"
#include "tests/support/process/proc_counters.hpp"

namespace gpushm::cli {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

TEST(refresh_child, returns_result_of_child) {
  const std::string large(3'000'000, 'x');
  EXPECT_EQ(run_in_child([&] { return large; }, seconds(30)), large);
  EXPECT_EQ(run_in_child([] { return std::string(); }, seconds(30)), "");
}

// Sanitizers flush the buffers of a child at _exit.
TEST(refresh_child, output_of_this_process_is_not_part_of_the_result) {
  std::printf("not part of the result\n");
  const std::string result = run_in_child(
      [] {
        std::printf("printed by the child\n");
        std::fflush(stdout);
        return std::string("result");
      },
      seconds(30));
  EXPECT_EQ(result, "result");
}

TEST(refresh_child, throws_error_of_child) {
  try {
    static_cast<void>(run_in_child(
        []() -> std::string {
          throw error(errc::device_not_found, "find device", "7", "no such device", "try again");
        },
        seconds(30)));
    FAIL() << "nothing was thrown";
  } catch (const error& failure) {
    EXPECT_EQ(failure.code(), errc::device_not_found);
    EXPECT_EQ(std::string(failure.what()), "find device \"7\": no such device (try again)");
  }
}

TEST(refresh_child, reports_crash) {
  try {
    static_cast<void>(run_in_child(
        []() -> std::string {
          static_cast<void>(::raise(SIGKILL));
          return {};
        },
        seconds(30)));
    FAIL() << "nothing was thrown";
  } catch (const error& failure) {
    EXPECT_EQ(failure.code(), errc::driver_error);
    EXPECT_THAT(failure.what(), HasSubstr("it ended early: killed by signal 9 (Killed)"));
  }
}

TEST(refresh_child, kills_hanging_child) {
  const auto before = gpushm_testing::total(gpushm_testing::count_descriptors(::getpid()));
  try {
    static_cast<void>(run_in_child(
        []() -> std::string {
          for (;;) {
            static_cast<void>(::poll(nullptr, 0, -1));
          }
        },
        milliseconds(100)));
    FAIL() << "nothing was thrown";
  } catch (const error& failure) {
    EXPECT_EQ(failure.code(), errc::timed_out);
    EXPECT_THAT(failure.what(), HasSubstr("the driver did not answer in time"));
  }
  EXPECT_EQ(gpushm_testing::total(gpushm_testing::count_descriptors(::getpid())), before);
}

}  // namespace
}  // namespace gpushm::cli
