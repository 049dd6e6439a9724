// SPDX-License-Identifier: Apache-2.0
// The effects of a new configuration on a kubelet.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/kubelet/server/server_test_support.hpp"

namespace gpushm_tests {
namespace {

using gpushm::device_plugin::manager;
using gpushm_testing::eventually;
using gpushm_testing::resource_view;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr const char* share = "gpushm.dev/share";

class server_resources : public ::testing::Test, protected server_test_base {
 protected:
  server_resources() { kubelet_.start(); }
  std::shared_ptr<test_resource> gpus_ = std::make_shared<test_resource>(gpu, 4);
  std::shared_ptr<test_resource> share_ = std::make_shared<test_resource>(share, 8);
};

TEST_F(server_resources, each_resource_has_its_own_registration) {
  manager served(options());
  served.set_resources({gpus_, share_});
  EXPECT_TRUE(kubelet_.wait_for_healthy(gpu, 4, seconds(20)));
  EXPECT_TRUE(kubelet_.wait_for_healthy(share, 8, seconds(20)));
  const auto all = served.status();
  ASSERT_THAT(all, SizeIs(2));
  EXPECT_EQ(all[0].name, gpu);
  EXPECT_EQ(all[1].name, share);
}

TEST_F(server_resources, unchanged_resource_keeps_its_registration) {
  manager served(options());
  served.set_resources({gpus_, share_});
  ASSERT_TRUE(kubelet_.wait_for_healthy(gpu, 4, seconds(20)));
  ASSERT_TRUE(kubelet_.wait_for_healthy(share, 8, seconds(20)));
  const auto before = kubelet_.resource(gpu);
  served.set_resources({gpus_, std::make_shared<test_resource>("nvidia.com/mig-1g.10gb.me", 7)});
  ASSERT_TRUE(kubelet_.wait_for_healthy("nvidia.com/mig-1g.10gb.me", 7, seconds(20)));
  ASSERT_TRUE(kubelet_.wait_for(
      share, [](const resource_view& view) { return !view.connected; }, seconds(20)));
  const auto after = kubelet_.resource(gpu);
  EXPECT_EQ(after.endpoint, before.endpoint);
  EXPECT_EQ(after.registrations, 1U);
  EXPECT_EQ(after.lists, before.lists);
}

TEST_F(server_resources, removed_resource_reports_no_devices_first) {
  manager served(options());
  served.set_resources({gpus_, share_});
  ASSERT_TRUE(kubelet_.wait_for_healthy(share, 8, seconds(20)));
  served.set_resources({gpus_});
  ASSERT_TRUE(kubelet_.wait_for(
      share, [](const resource_view& view) { return !view.connected; }, seconds(20)));
  // Otherwise eight unhealthy devices would stay in the node's capacity.
  EXPECT_THAT(kubelet_.resource(share).devices, IsEmpty());
  EXPECT_FALSE(share_->has_listener());
  EXPECT_TRUE(eventually([&] { return served.status().size() == 1; }, seconds(20)));
}

TEST_F(server_resources, new_devices_are_sent_on_the_same_stream) {
  manager served(options());
  served.set_resources({gpus_});
  ASSERT_TRUE(kubelet_.wait_for_healthy(gpu, 4, seconds(20)));
  const auto before = kubelet_.resource(gpu);
  const auto more = std::make_shared<test_resource>(gpu, 40);
  served.set_resources({more});
  ASSERT_TRUE(kubelet_.wait_for_healthy(gpu, 40, seconds(20)));
  EXPECT_EQ(kubelet_.resource(gpu).endpoint, before.endpoint);
  EXPECT_EQ(kubelet_.resource(gpu).registrations, 1U);
  EXPECT_EQ(kubelet_.count_events("stream ended"), 0U);
  // Calls and changes go to the new resource.
  EXPECT_FALSE(gpus_->has_listener());
  more->set_health("device-39", false);
  EXPECT_TRUE(kubelet_.wait_for_healthy(gpu, 39, seconds(20)));
  EXPECT_THAT(kubelet_.allocate("pod", gpu, 39).ids, SizeIs(39));
}

TEST_F(server_resources, changed_options_cause_a_new_registration) {
  manager served(options());
  served.set_resources({gpus_});
  ASSERT_TRUE(kubelet_.wait_for_healthy(gpu, 4, seconds(20)));
  served.set_resources({std::make_shared<test_resource>(gpu, 5, true)});
  EXPECT_TRUE(kubelet_.wait_for(
      gpu,
      [](const resource_view& view) {
        return view.connected && view.healthy() == 5 && view.has_preferences;
      },
      seconds(20)));
}

TEST_F(server_resources, last_of_many_changes_applies) {
  manager served(options());
  for (std::size_t count = 0; count < 50; ++count) {
    served.set_resources({std::make_shared<test_resource>(gpu, count, count % 3 == 0), share_});
  }
  EXPECT_TRUE(kubelet_.wait_for_healthy(gpu, 49, seconds(30)));
  EXPECT_TRUE(kubelet_.wait_for_healthy(share, 8, seconds(20)));
}

TEST_F(server_resources, duplicate_names_are_rejected_without_effect) {
  manager served(options());
  served.set_resources({gpus_});
  try {
    served.set_resources({share_, gpus_, std::make_shared<test_resource>(gpu, 1)});
    FAIL() << "accepted";
  } catch (const gpushm::error& rejection) {
    EXPECT_STREQ(rejection.what(),
                 "serve \"nvidia.com/gpu\": two resources have this name (give each resource a "
                 "different name"
                 ")");
    EXPECT_EQ(rejection.code(), gpushm::errc::invalid_argument);
  }
  try {
    served.set_resources({nullptr});
    FAIL() << "accepted";
  } catch (const gpushm::error& rejection) {
    EXPECT_STREQ(rejection.what(), "serve: a resource is missing (pass no null)");
  }
  EXPECT_TRUE(kubelet_.wait_for_healthy(gpu, 4, seconds(20)));
  EXPECT_EQ(kubelet_.resource(share).registrations, 0U);
}

}  // namespace
}  // namespace gpushm_tests
