// SPDX-License-Identifier: Apache-2.0
// Two concurrent instances of the plugin, as in an update: when either stream ends, a kubelet
// disconnects the plugin that is currently registered.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/kubelet/server/server_test_support.hpp"

namespace gpushm_tests {
namespace {

using gpushm::device_plugin::manager;
using gpushm_testing::eventually;
using gpushm_testing::resource_view;

class server_instances : public ::testing::Test, protected server_test_base {
 protected:
  server_instances() { kubelet_.start(); }
  std::shared_ptr<test_resource> old_ = std::make_shared<test_resource>(gpu, 4);
  std::shared_ptr<test_resource> new_ = std::make_shared<test_resource>(gpu, 5);
};

TEST_F(server_instances, update_ends_with_one_healthy_registration) {
  auto before = std::make_unique<manager>(options());
  before->set_resources({old_});
  ASSERT_TRUE(kubelet_.wait_for_healthy(gpu, 4, seconds(20)));

  manager after(options());
  after.set_resources({new_});
  ASSERT_TRUE(kubelet_.wait_for_healthy(gpu, 5, seconds(20)));
  const std::string first = kubelet_.resource(gpu).endpoint;
  EXPECT_TRUE(status_of(*before, gpu).registered);  // its stream is still open

  before.reset();
  // The end of the old stream ends the registration of the new instance, which registers again.
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

TEST_F(server_instances, two_instances_do_not_disturb_each_other) {
  manager one(options());
  one.set_resources({old_});
  ASSERT_TRUE(kubelet_.wait_for_healthy(gpu, 4, seconds(20)));
  manager other(options());
  other.set_resources({new_});
  ASSERT_TRUE(kubelet_.wait_for_healthy(gpu, 5, seconds(20)));
  // The last list applies, and calls go to the last registration; neither instance registers again.
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
  settings.max_retry = seconds(30);
  manager one(settings);
  one.set_resources({std::make_shared<test_resource>(gpu, 4)});
  ASSERT_TRUE(kubelet_.wait_for_healthy(gpu, 4, seconds(20)));
  const auto started = std::chrono::steady_clock::now();
  manager other(settings);
  other.set_resources({std::make_shared<test_resource>(gpu, 5)});
  // Each registration ends the stream of the other instance, which then waits twice as long as
  // before. Each instance waits at least three quarters of 100, 200 and 400 ms before the eighth
  // registration.
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
