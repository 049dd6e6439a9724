// SPDX-License-Identifier: Apache-2.0
#include "client/lease/handback_thread.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "tests/support/process/deadline.hpp"

namespace gpushm::client_detail {
namespace {

using namespace std::chrono_literals;
using gpushm_testing::eventually;

/// Its broker ends again, and then its client, while it attempts.
TEST(handback_thread, ends_when_it_is_stopped_and_wanted_again) {
  for (const bool succeeds : {true, false}) {
    handback_thread* self = nullptr;
    std::atomic<bool> attempts = false;
    std::atomic<bool> has_ended = false;
    handback_thread tested([&](const std::stop_token& stop) {
      attempts = true;
      EXPECT_TRUE(eventually([&] { return stop.stop_requested(); }, 20s));
      EXPECT_TRUE(self->start());
      return succeeds;
    });
    self = &tested;
    ASSERT_TRUE(tested.start());
    ASSERT_TRUE(eventually([&] { return attempts.load(); }, 20s));
    std::thread stopping([&] {
      tested.stop();
      has_ended = true;
    });
    if (!eventually([&] { return has_ended.load(); }, 20s)) {
      ADD_FAILURE() << "it does not end, and neither would its destructor";
      std::_Exit(1);
    }
    stopping.join();
  }
}

/// Without an attempt, if the thread was not faster.
TEST(handback_thread, ends_when_it_is_stopped_before_its_first_attempt) {
  for (int i = 0; i != 200; ++i) {
    std::atomic<int> attempts = 0;
    {
      handback_thread tested([&](const std::stop_token&) {
        ++attempts;
        return true;
      });
      ASSERT_TRUE(tested.start());
    }
    EXPECT_LE(attempts, 1);
  }
}

}  // namespace
}  // namespace gpushm::client_detail
