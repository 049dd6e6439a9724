// SPDX-License-Identifier: Apache-2.0
#include "succession/descriptor_store/watchdog.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

namespace {

using namespace std::chrono_literals;
using gpushm::keeper::watchdog;

constexpr std::chrono::milliseconds timeout = 30s;

/// A keeper that looks whenever it should, and the watchdog's time.
class watching {
 public:
  void report() { dog.report(now, timeout); }
  /// Whether a hang is found within this time, in which the keeper runs.
  bool finds_hang_within(std::chrono::milliseconds time) {
    const auto end = now + time;
    while (now < end) {
      const auto next = dog.next_look(timeout);
      now = next ? std::clamp(*next, now, end) : end;  // a look that is late is made at once
      if (dog.finds_hang(now, timeout)) {
        return true;
      }
    }
    return false;
  }
  /// The keeper does not run.
  void stop_for(std::chrono::milliseconds time) { now += time; }

  watchdog dog{};
  watchdog::clock::time_point now{1'000h};
};

TEST(watchdog, finds_a_program_that_has_stopped_reporting) {
  watching watching;
  EXPECT_FALSE(watching.finds_hang_within(1h)) << "it has never reported";
  for (int i = 0; i < 10; ++i) {
    watching.report();
    EXPECT_FALSE(watching.finds_hang_within(29s));
  }
  watching.report();
  EXPECT_TRUE(watching.finds_hang_within(30s));
}

TEST(watchdog, does_not_watch_a_program_that_has_ended) {
  watching of;
  of.report();
  of.dog.forget();
  EXPECT_FALSE(of.finds_hang_within(1h));
  EXPECT_FALSE(of.dog.next_look(timeout));
}

/// The container was stopped, with the keeper and its program.
TEST(watchdog, does_not_count_time_in_which_the_keeper_was_stopped) {
  for (const auto before : {0s, 5s, 10s, 14s, 19s}) {
    for (const auto stop : {1s, 20s, 31s, 3'600s}) {
      watching watching;
      watching.report();
      EXPECT_FALSE(watching.finds_hang_within(before));
      watching.stop_for(stop);
      EXPECT_FALSE(watching.finds_hang_within(2s)) << "it has no time left to report";
      EXPECT_TRUE(watching.finds_hang_within(30s)) << "it does not report";
    }
  }
}

TEST(watchdog, is_off_with_a_timeout_of_0) {
  watching of;
  of.dog.report(of.now, 0ms);
  EXPECT_FALSE(of.dog.next_look(0ms));
  EXPECT_FALSE(of.dog.finds_hang(of.now + 1h, 0ms));
}

}  // namespace
