// SPDX-License-Identifier: Apache-2.0
// Two instances of the plugin at once, as in an update: a kubelet that sees either stream end
// disconnects whoever is registered by then.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/kubelet/server/server_test_support.hpp"

namespace gpushm_tests {
namespace {

using gpushm::kubelet::manager;
using gpushm_testing::eventually;
using gpushm_testing::resource_view;

class server_instances : public ::testing::Test, protected server_test_base {
 protected:
  server_instances() { kubelet_.start(); }
  std::shared_ptr<test_resource> old_ = std::make_shared<test_resource>(gpu, 4);
  std::shared_ptr<test_resource> new_ = std::make_shared<test_resource>(gpu, 5);
};

TEST_F(server_instances, an_update_ends_with_one_healthy_registration) {
  auto before = std::make_unique<manager>(options());
  before->set_resources({old_});
  ASSERT_TRUE(kubelet_.wait_for_healthy(gpu, 4, seconds(20)));

  manager after(options());
  after.set_resources({new_});
  ASSERT_TRUE(kubelet_.wait_for_healthy(gpu, 5, seconds(20)));
  const std::string first = kubelet_.resource(gpu).endpoint;
  EXPECT_TRUE(status_of(*before, gpu).registered);  // its stream still runs

  before.reset();
  // The end of the old stream costs the new instance its registration, which it renews.
  EXPECT_TRUE(eventually([&] { return kubelet_.count_events("disconnected") == 1; }, seconds(20)));
  EXPECT_TRUE(kubelet_.wait_for(
      gpu,
      [](const resource_view& view) {
        return view.connected && view.healthy() == 5 && view.registrations == 3;
      },
      seconds(20)));
  EXPECT_EQ(kubelet_.resource(gpu).endpoint, first);
  EXPECT_EQ(kubelet_.allocate("pod", gpu, 5).ids.size(), 5U);
  ASSERT_TRUE(eventually_status(after, gpu, [](const auto& s) { return s.times_registered == 2; }));
}

TEST_F(server_instances, two_that_stay_leave_each_other_alone) {
  manager one(options());
  one.set_resources({old_});
  ASSERT_TRUE(kubelet_.wait_for_healthy(gpu, 4, seconds(20)));
  manager other(options());
  other.set_resources({new_});
  ASSERT_TRUE(kubelet_.wait_for_healthy(gpu, 5, seconds(20)));
  // Whoever lists last wins, whoever registered last is asked; nobody registers again for that.
  new_->set_health("device-0", false);
  ASSERT_TRUE(kubelet_.wait_for_healthy(gpu, 4, seconds(20)));
  EXPECT_EQ(kubelet_.resource(gpu).registrations, 2U);
  EXPECT_EQ(kubelet_.count_events("stream ended"), 0U);
}

class server_instances_old_kubelet : public ::testing::Test, protected server_test_base {
 protected:
  server_instances_old_kubelet() : server_test_base({.newest_ends_older = true}) {
    kubelet_.start();
  }
};

TEST_F(server_instances_old_kubelet, two_instances_alternate_with_back_off) {
  auto settings = options();
  settings.longest_retry = seconds(30);
  manager one(settings);
  one.set_resources({std::make_shared<test_resource>(gpu, 4)});
  ASSERT_TRUE(kubelet_.wait_for_healthy(gpu, 4, seconds(20)));
  const auto started = std::chrono::steady_clock::now();
  manager other(settings);
  other.set_resources({std::make_shared<test_resource>(gpu, 5)});
  // Every registration ends the other's stream, who then waits twice as long as the time before.
  // At least three quarters of 100, 200 and 400 ms, by each of the two, before the eighth.
  ASSERT_TRUE(kubelet_.wait_for(
      gpu, [](const resource_view& view) { return view.registrations >= 8; }, seconds(30)));
  EXPECT_GE(std::chrono::steady_clock::now() - started, milliseconds(1'000));
  EXPECT_TRUE(kubelet_.wait_for(
      gpu,
      [](const resource_view& view) { return view.connected && view.healthy() >= 4; },
      seconds(20)));
}

}  // namespace
}  // namespace gpushm_tests
