// SPDX-License-Identifier: Apache-2.0
// Pods get devices through server and kubelet: never a device in use, never an unhealthy one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "tests/kubelet/server/server_test_support.hpp"

namespace gpushm_tests {
namespace {

using gpushm::device_plugin::manager;
using gpushm_testing::admission_error;
using ::testing::ElementsAre;
using ::testing::SizeIs;

class server_allocation : public ::testing::Test, protected server_test_base {
 protected:
  server_allocation() { kubelet_.start(); }
  [[nodiscard]] std::string allocate_result(const std::string& pod, std::size_t count) {
    try {
      const auto got = kubelet_.allocate(pod, gpu, count);
      return std::string("got ").append(std::to_string(got.ids.size()));
    } catch (const admission_error& rejection) {
      return rejection.what();
    }
  }
};

TEST_F(server_allocation, preferences_are_requested_only_if_supported) {
  manager served(options());
  served.set_resources({std::make_shared<test_resource>(gpu, 3),
                        std::make_shared<test_resource>("gpushm.dev/share", 3, true)});
  ASSERT_TRUE(kubelet_.wait_for_healthy(gpu, 3, seconds(20)));
  ASSERT_TRUE(kubelet_.wait_for_healthy("gpushm.dev/share", 3, seconds(20)));
  EXPECT_THAT(kubelet_.allocate("pod", gpu, 1).ids, ElementsAre("device-0"));
  const auto preferred = kubelet_.allocate("pod", "gpushm.dev/share", 1);
  EXPECT_THAT(preferred.preferred, ElementsAre("device-2"));
  EXPECT_THAT(preferred.ids, ElementsAre("device-2"));
  EXPECT_EQ(preferred.allocation.envs.at("TEST_DEVICES"), "device-2");
  EXPECT_THAT(preferred.allocation.cdi_devices, ElementsAre("example.com/test=device-2"));
}

TEST_F(server_allocation, random_allocations_keep_accounts_consistent) {
  constexpr std::size_t devices = 24;
  const auto resource = std::make_shared<test_resource>(gpu, devices, true);
  manager served(options());
  served.set_resources({resource});
  ASSERT_TRUE(kubelet_.wait_for_healthy(gpu, devices, seconds(20)));
  // A fixed seed: the same run every time.
  std::minstd_rand random(20'260'801);  // NOLINT(cert-msc51-cpp): not for secrets
  std::map<std::string, std::vector<std::string>> pods;
  std::set<std::string> unhealthy;
  int rejections = 0;
  for (int step = 0; step < 300; ++step) {
    const auto choice = random() % 10;
    if (choice < 5) {
      const std::string pod = std::string("pod-").append(std::to_string(step));
      try {
        const auto got = kubelet_.allocate(pod, gpu, 1 + random() % 4);
        for (const std::string& id : got.ids) {
          ASSERT_EQ(unhealthy.count(id), 0U) << id << " is unhealthy";
          for (const auto& [other, ids] : pods) {
            ASSERT_EQ(std::count(ids.begin(), ids.end(), id), 0) << id << " is " << other << "'s";
          }
        }
        pods[pod] = got.ids;
      } catch (const admission_error&) {
        ++rejections;
      }
    } else if (choice < 8 && !pods.empty()) {
      const auto which =
          std::next(pods.begin(), static_cast<std::ptrdiff_t>(random() % pods.size()));
      kubelet_.free(which->first);
      pods.erase(which);
    } else {
      const std::string id = std::string("device-").append(std::to_string(random() % devices));
      const bool healthy = unhealthy.erase(id) != 0;
      if (!healthy) {
        unhealthy.insert(id);
      }
      resource->set_health(id, healthy);
      ASSERT_TRUE(kubelet_.wait_for_healthy(gpu, devices - unhealthy.size(), seconds(20)));
    }
  }
  EXPECT_GT(rejections, 0);
  EXPECT_FALSE(pods.empty());
}

TEST_F(server_allocation, allocations_survive_a_kubelet_restart) {
  manager served(options());
  served.set_resources({std::make_shared<test_resource>(gpu, 3)});
  ASSERT_TRUE(kubelet_.wait_for_healthy(gpu, 3, seconds(20)));
  EXPECT_THAT(kubelet_.allocate("first", gpu, 2).ids, SizeIs(2));
  kubelet_.stop();
  EXPECT_EQ(allocate_result("second", 1), "no device plugin is connected for nvidia.com/gpu");
  kubelet_.start();
  ASSERT_TRUE(kubelet_.wait_for_healthy(gpu, 3, seconds(20)));
  EXPECT_EQ(
      allocate_result("second", 2),
      "requested number of devices unavailable for nvidia.com/gpu. Requested: 2, Available: 1");
  kubelet_.free("first");
  EXPECT_EQ(allocate_result("second", 3), "got 3");
}

TEST_F(server_allocation, sixty_four_gpus_with_a_hundred_replicas) {
  constexpr std::size_t devices = 6'400;
  const auto resource = std::make_shared<test_resource>(gpu, devices);
  manager served(options());
  served.set_resources({resource});
  ASSERT_TRUE(kubelet_.wait_for_healthy(gpu, devices, seconds(30)));
  EXPECT_THAT(kubelet_.allocate("most", gpu, devices - 1).ids, SizeIs(devices - 1));
  resource->set_health("device-6399", false);
  ASSERT_TRUE(kubelet_.wait_for_healthy(gpu, devices - 1, seconds(30)));
  EXPECT_EQ(
      allocate_result("another", 1),
      "requested number of devices unavailable for nvidia.com/gpu. Requested: 1, Available: 0");
}

}  // namespace
}  // namespace gpushm_tests
