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
  pausing of;
  EXPECT_FALSE(of.pause.left(of.now));
  of.pause.begin(of.now);
  EXPECT_FALSE(of.pause.left(of.now + 1h)) << "a takeover that lasts, or has succeeded";
  pausing other;
  other.pause.fail(other.now, factor);
  EXPECT_FALSE(other.pause.left(other.now)) << "no takeover has begun";
}

TEST(takeover_pause, ends) {
  pausing of;
  EXPECT_EQ(of.fail(2s), 20s);
  of.now += 20s - 1ms;
  EXPECT_EQ(of.pause.left(of.now), 1ms);
  of.now += 1ms;
  EXPECT_FALSE(of.pause.left(of.now));
}

/// In Kubernetes a successor that hangs is started again at once, then after 10 s, 20 s, ... 5 min.
TEST(takeover_pause, leaves_clients_most_of_the_time) {
  for (const auto away : {1ms, 50ms, 1'000ms, 12'000ms, 40'000ms}) {
    pausing of;
    std::chrono::milliseconds all_away{0};
    const auto start = of.now;
    for (int i = 0; i < 30; ++i) {
      const auto left = of.fail(away);
      all_away += away;
      ASSERT_TRUE(left);
      EXPECT_LE(*left, takeover_pause::longest);
      of.now += *left;
    }
    EXPECT_LE(7 * all_away, of.now - start) << away.count();
  }
}

TEST(takeover_pause, is_doubled_with_each_failure) {
  pausing of;
  for (const auto expected : {500ms, 1'000ms, 2'000ms, 4'000ms}) {
    EXPECT_EQ(of.fail(50ms), expected);
    of.now += 10s;
  }
  for (int i = 0; i < 100; ++i) {
    of.fail(50ms);
  }
  EXPECT_EQ(of.fail(50ms), takeover_pause::longest);
  of.now += 3h;
  EXPECT_EQ(of.fail(50ms), 500ms) << "that was another upgrade";
}

TEST(takeover_pause, is_off_with_a_factor_of_0) {
  pausing of;
  of.pause.begin(of.now);
  of.pause.fail(of.now + 1h, 0);
  EXPECT_FALSE(of.pause.left(of.now + 1h));
}

}  // namespace
