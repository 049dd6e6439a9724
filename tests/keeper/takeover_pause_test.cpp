// SPDX-License-Identifier: Apache-2.0
#include "succession/descriptor_store/takeover_pause.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <optional>

namespace {

using namespace std::chrono_literals;
using gpushm::keeper::takeover_pause;

constexpr unsigned factor = 10;

/// A pause, and its time.
class pausing {
 public:
  /// A takeover during which the program is away for this time. Returns the pause.
  std::optional<std::chrono::milliseconds> fail(std::chrono::milliseconds away) {
    pause.begin(now);
    now += away;
    pause.fail(now, factor);
    return pause.left(now);
  }

  takeover_pause pause{};
  takeover_pause::clock::time_point now{1'000h};
};

TEST(takeover_pause, is_not_there_before_a_failure) {
  pausing state;
  EXPECT_FALSE(state.pause.left(state.now));
  state.pause.begin(state.now);
  EXPECT_FALSE(state.pause.left(state.now + 1h)) << "a takeover that lasts, or has succeeded";
  pausing other;
  other.pause.fail(other.now, factor);
  EXPECT_FALSE(other.pause.left(other.now)) << "no takeover has begun";
}

TEST(takeover_pause, ends) {
  pausing state;
  EXPECT_EQ(state.fail(2s), 20s);
  state.now += 20s - 1ms;
  EXPECT_EQ(state.pause.left(state.now), 1ms);
  state.now += 1ms;
  EXPECT_FALSE(state.pause.left(state.now));
}

/// In Kubernetes a successor that hangs is started again at once, then after 10 s, 20 s, ... 5 min.
TEST(takeover_pause, leaves_clients_most_of_the_time) {
  for (const auto away : {1ms, 50ms, 1'000ms, 12'000ms, 40'000ms}) {
    pausing state;
    std::chrono::milliseconds all_away{0};
    const auto start = state.now;
    for (int i = 0; i < 30; ++i) {
      const auto left = state.fail(away);
      all_away += away;
      ASSERT_TRUE(left);
      EXPECT_LE(*left, takeover_pause::longest);
      state.now += *left;
    }
    EXPECT_LE(7 * all_away, state.now - start) << away.count();
  }
}

TEST(takeover_pause, is_doubled_with_each_failure) {
  pausing state;
  for (const auto expected : {500ms, 1'000ms, 2'000ms, 4'000ms}) {
    EXPECT_EQ(state.fail(50ms), expected);
    state.now += 10s;
  }
  for (int i = 0; i < 100; ++i) {
    state.fail(50ms);
  }
  EXPECT_EQ(state.fail(50ms), takeover_pause::longest);
  state.now += 3h;
  EXPECT_EQ(state.fail(50ms), 500ms) << "that was another upgrade";
}

TEST(takeover_pause, is_off_with_a_factor_of_0) {
  pausing state;
  state.pause.begin(state.now);
  state.pause.fail(state.now + 1h, 0);
  EXPECT_FALSE(state.pause.left(state.now + 1h));
}

}  // namespace
