// SPDX-License-Identifier: Apache-2.0
// Keeping the ResourceSlice as it should be.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "dra_world.hpp"
#include "kubelet/dra/slice_publisher.hpp"
#include "process/deadline.hpp"

namespace gpushm_testing {
namespace {

using namespace std::chrono_literals;
using gpushm::dra::slice_publisher;
using testing::ElementsAre;

constexpr std::chrono::milliseconds soon = 20s;

class dra_slices : public testing::Test {
 protected:
  void start(unsigned devices = 4) {
    publisher_.reset();
    api_ = std::make_unique<gpushm::dra::resource_api>(cluster_);
    publisher_ = std::make_unique<slice_publisher>(
        gpushm::dra::slice_options{test_driver, test_node, devices}, *api_, cluster_, nullptr);
  }
  [[nodiscard]] std::optional<json> slice(const std::string& version = "v1") const {
    return cluster_.find(slices_path(version) + "/node-a-gpushm.dev");
  }
  [[nodiscard]] bool becomes(const std::function<bool(const json&)>& is) const {
    return eventually(
        [&] {
          const auto now = slice();
          return now && is(*now);
        },
        soon);
  }
  static std::size_t devices_of(const json& slice) { return slice.at("spec").at("devices").size(); }

  memory_cluster cluster_;
  std::unique_ptr<gpushm::dra::resource_api> api_;
  std::unique_ptr<slice_publisher> publisher_;
};

TEST_F(dra_slices, is_made_once_and_then_left_alone) {
  start();
  ASSERT_TRUE(becomes([](const json& now) { return devices_of(now) == 4; }));
  ASSERT_TRUE(eventually([&] { return publisher_->now().published; }, soon));
  EXPECT_EQ(slice()->at("spec").at("pool").at("generation"), 1);
  EXPECT_EQ(cluster_.writes, 1U);
  start();
  ASSERT_TRUE(eventually([&] { return publisher_->now().published; }, soon));
  EXPECT_EQ(cluster_.writes, 1U);
}

TEST_F(dra_slices, other_numbers_of_devices_are_a_new_generation) {
  start();
  ASSERT_TRUE(becomes([](const json& now) { return devices_of(now) == 4; }));
  start(6);
  ASSERT_TRUE(becomes([](const json& now) { return devices_of(now) == 6; }));
  EXPECT_EQ(slice()->at("spec").at("pool").at("generation"), 2);
}

TEST_F(dra_slices, deleted_or_changed_by_others_it_is_mended) {
  start();
  ASSERT_TRUE(becomes([](const json& now) { return devices_of(now) == 4; }));
  for (int round = 0; round < 5; ++round) {
    const json uid = slice()->at("metadata").at("uid");
    cluster_.erase(slices_path() + "/node-a-gpushm.dev");
    ASSERT_TRUE(becomes([&](const json& now) { return now.at("metadata").at("uid") != uid; }));
  }
  json changed = *slice();
  changed["spec"]["devices"].erase(0);
  cluster_.put(slices_path() + "/node-a-gpushm.dev", changed);
  ASSERT_TRUE(becomes([](const json& now) { return devices_of(now) == 4; }));
  EXPECT_GT(slice()->at("spec").at("pool").at("generation").get<int>(),
            changed.at("spec").at("pool").at("generation").get<int>());
}

TEST_F(dra_slices, slices_of_its_own_that_are_too_many_go) {
  json other = gpushm::dra::make_slice({test_driver, test_node, 2}, "v1", "node-uid-1", 1);
  other["metadata"]["name"] = "node-a-gpushm.dev-abcde";
  cluster_.put(slices_path() + "/node-a-gpushm.dev-abcde", other);
  start();
  ASSERT_TRUE(eventually(
      [&] {
        return cluster_.paths(slices_path()) ==
               std::vector<std::string>{slices_path() + "/node-a-gpushm.dev"};
      },
      soon));
}

TEST_F(dra_slices, who_creates_first_does_not_matter) {
  cluster_.races = 1;
  start();
  ASSERT_TRUE(becomes([](const json& now) { return devices_of(now) == 4; }));
  ASSERT_TRUE(eventually([&] { return publisher_->now().published; }, soon));
  EXPECT_EQ(publisher_->now().problem, "");
}

TEST_F(dra_slices, a_server_that_is_away_or_refuses_is_asked_again) {
  cluster_.away = true;
  start();
  ASSERT_TRUE(eventually([&] { return !publisher_->now().problem.empty(); }, soon));
  EXPECT_EQ(publisher_->now().problem,
            "discover \"resource.k8s.io\": connection refused (start the server)");
  EXPECT_FALSE(publisher_->now().published);
  cluster_.refuses = 403;
  cluster_.away = false;
  ASSERT_TRUE(eventually(
      [&] { return publisher_->now().problem.find("not allowed") != std::string::npos; }, soon));
  cluster_.refuses = 0;
  ASSERT_TRUE(becomes([](const json& now) { return devices_of(now) == 4; }));
  ASSERT_TRUE(eventually([&] { return publisher_->now().published; }, soon));
}

TEST_F(dra_slices, an_old_server_gets_its_shape) {
  cluster_.set_versions({"v1beta1"});
  start();
  ASSERT_TRUE(eventually([&] { return slice("v1beta1").has_value(); }, soon));
  EXPECT_TRUE(slice("v1beta1")->at("spec").at("devices").at(0).contains("basic"));
  EXPECT_EQ(slice("v1beta1")->at("apiVersion"), "resource.k8s.io/v1beta1");
}

TEST_F(dra_slices, a_node_made_again_owns_the_next_slice) {
  start();
  ASSERT_TRUE(becomes([](const json& now) { return devices_of(now) == 4; }));
  cluster_.put(std::string("/api/v1/nodes/") + test_node, {{"metadata", {{"uid", "node-uid-2"}}}});
  cluster_.erase(slices_path() + "/node-a-gpushm.dev");  // as the garbage collector does
  ASSERT_TRUE(becomes([](const json& now) {
    return now.at("metadata").at("ownerReferences").at(0).at("uid") == "node-uid-2";
  }));
}

}  // namespace
}  // namespace gpushm_testing
