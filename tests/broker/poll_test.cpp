// SPDX-License-Identifier: Apache-2.0
// How long the broker polls for the next request before it sleeps: by its accounting and by the CPU
// time of its thread.
#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <thread>
#include <vector>

#include "broker/server/adaptive_poll.hpp"
#include "gpushm/gpushm.hpp"
#include "tests/client/served_broker.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/environment.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm::broker_detail {
namespace {

using namespace std::chrono_literals;

int simulated_seconds() {
  return gpushm_testing::number_from_environment("GPUSHM_POLL_SECONDS", 2);
}

/// Answers every `gap`; each poll finds something after `wait` unless it ends earlier. Returns the
/// longest time polled in any second.
adaptive_poll::clock::duration max_polled_in_one_second(
    adaptive_poll::clock::duration gap,
    adaptive_poll::clock::duration wait,
    adaptive_poll::after outcome = adaptive_poll::after::reply) {
  adaptive_poll poll(true);
  adaptive_poll::clock::time_point now{1h};
  const auto end = now + std::chrono::seconds(simulated_seconds());
  std::deque<std::pair<adaptive_poll::clock::time_point, adaptive_poll::clock::duration>> polls;
  adaptive_poll::clock::duration sum{0};
  adaptive_poll::clock::duration most{0};
  while (now < end) {
    if (const auto longest = poll.next(outcome, now); longest.count() != 0) {
      const auto took = std::min(longest, wait);
      now += took;
      poll.polled(took, wait < longest);
      polls.emplace_back(now, took);
      sum += took;
      while (polls.front().first < now - 1s) {
        sum -= polls.front().second;
        polls.pop_front();
      }
      most = std::max(most, sum);
    }
    now += gap;
  }
  return most;
}

TEST(adaptive_poll, uses_at_most_5_percent_of_a_cpu_in_any_second) {
  std::vector<adaptive_poll::clock::duration> gaps{2us, 20us, 100us, 1000us};
  if (simulated_seconds() > 2) {  // which take most of the time
    gaps.insert(gaps.end(), {1us, 5us});
  }
  for (const auto gap : gaps) {
    for (const auto wait : {1us, 5us, 20us, 29us, 31us, 99us, 101us, 1000us}) {
      SCOPED_TRACE(std::to_string(gap / 1us) + " us, " + std::to_string(wait.count()) + " us");
      EXPECT_LE(max_polled_in_one_second(gap, wait), 50ms + adaptive_poll::longest_poll);
      EXPECT_LE(max_polled_in_one_second(gap, wait, adaptive_poll::after::question),
                50ms + adaptive_poll::longest_poll_for_exporters);
    }
  }
  EXPECT_GE(max_polled_in_one_second(1us, 20us), 45ms) << "and uses it if polls find something";
}

TEST(adaptive_poll, polls_less_often_after_misses) {
  adaptive_poll poll(true);
  adaptive_poll::clock::time_point now{1h};
  std::size_t polls = 0;
  for (int i = 0; i < 10'000; ++i) {
    now += 1ms;
    if (const auto longest = poll.next(adaptive_poll::after::reply, now); longest.count() != 0) {
      ++polls;
      poll.polled(longest, false);
    }
  }
  EXPECT_GE(polls, 10'000U / 256U);
  EXPECT_LE(polls, 10'000U / 256U + 10U);
}

TEST(adaptive_poll, polls_every_time_after_a_hit) {
  adaptive_poll poll(true);
  adaptive_poll::clock::time_point now{1h};
  for (int i = 0; i < 1'000; ++i) {  // many misses
    now += 1ms;
    if (const auto longest = poll.next(adaptive_poll::after::reply, now); longest.count() != 0) {
      poll.polled(longest, false);
    }
  }
  const auto skipped = [&] {
    for (int i = 0;; ++i) {
      now += 1ms;
      if (const auto longest = poll.next(adaptive_poll::after::reply, now); longest.count() != 0) {
        poll.polled(10us, true);
        return i;
      }
    }
  };
  EXPECT_LE(skipped(), 255);
  EXPECT_EQ(skipped(), 0);
  EXPECT_EQ(skipped(), 0);
}

TEST(adaptive_poll, counts_misses_per_kind_of_event) {
  adaptive_poll poll(true);
  adaptive_poll::clock::time_point now{1h};
  const auto poll_after = [&](adaptive_poll::after outcome, bool success) {
    now += 1ms;
    const auto longest = poll.next(outcome, now);
    if (longest.count() != 0) {
      poll.polled(success ? 5us : longest, success);
    }
    return longest.count() != 0;
  };
  int polls_after_replies = 0;
  for (int i = 0; i < 100; ++i) {
    polls_after_replies += poll_after(adaptive_poll::after::reply, false) ? 1 : 0;
    EXPECT_TRUE(poll_after(adaptive_poll::after::request_without_reply, true)) << i;
  }
  EXPECT_LE(polls_after_replies, 7);  // before 0, 2, 6, 14, 30, 62, and perhaps one more
}

TEST(adaptive_poll, does_not_poll_when_disabled) {
  adaptive_poll off(false);
  EXPECT_EQ(off.next(adaptive_poll::after::reply, adaptive_poll::clock::time_point(1h)), 0s);
}

TEST(polling_broker, uses_no_cpu_when_idle) {
  const gpushm_testing::temp_dir folder;
  broker_options options;
  options.socket_path = folder / "socket";
  testing_world::served_broker broker(options);
  client asking = client::connect({.socket_path = options.socket_path});

  // Constant polling would use half a second.
  const auto before = broker.cpu_time();
  for (int i = 0; i < 250; ++i) {
    static_cast<void>(asking.list("none"));
    std::this_thread::sleep_for(2ms);
  }
  EXPECT_LT(broker.cpu_time() - before, gpushm_testing::scaled_timeout(100ms));

  std::this_thread::sleep_for(100ms);
  const auto idle = broker.cpu_time();
  std::this_thread::sleep_for(500ms);
  EXPECT_LT(broker.cpu_time() - idle, gpushm_testing::scaled_timeout(2ms));
}

}  // namespace
}  // namespace gpushm::broker_detail
