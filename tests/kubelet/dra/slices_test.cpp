// SPDX-License-Identifier: Apache-2.0
// Keeping the ResourceSlice up to date.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <memory>
#include <thread>

#include "kubernetes/dra/driver/slice_publisher.hpp"
#include "tests/kubelet/dra/world.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/logged.hpp"

namespace gpushm_testing {
namespace {

using namespace std::chrono_literals;
using gpushm::dra::slice_publisher;
using testing::ElementsAre;

constexpr std::chrono::milliseconds timeout = 20s;

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
        timeout);
  }
  static std::size_t devices_of(const json& slice) { return slice.at("spec").at("devices").size(); }

  memory_cluster cluster_;
  std::unique_ptr<gpushm::dra::resource_api> api_;
  std::unique_ptr<slice_publisher> publisher_;
};

TEST_F(dra_slices, is_created_once_and_not_rewritten) {
  start();
  ASSERT_TRUE(becomes([](const json& now) { return devices_of(now) == 4; }));
  ASSERT_TRUE(eventually([&] { return publisher_->now().published; }, timeout));
  EXPECT_EQ(slice()->at("spec").at("pool").at("generation"), 1);
  EXPECT_EQ(cluster_.writes, 1U);
  start();
  ASSERT_TRUE(eventually([&] { return publisher_->now().published; }, timeout));
  EXPECT_EQ(cluster_.writes, 1U);
}

TEST_F(dra_slices, device_count_change_increments_generation) {
  start();
  ASSERT_TRUE(becomes([](const json& now) { return devices_of(now) == 4; }));
  start(6);
  ASSERT_TRUE(becomes([](const json& now) { return devices_of(now) == 6; }));
  EXPECT_EQ(slice()->at("spec").at("pool").at("generation"), 2);
}

TEST_F(dra_slices, restored_after_deletion_or_change_by_others) {
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

TEST_F(dra_slices, superfluous_slices_are_removed) {
  json other = gpushm::dra::make_slice({test_driver, test_node, 2}, "v1", "node-uid-1", 1);
  other["metadata"]["name"] = "node-a-gpushm.dev-abcde";
  cluster_.put(slices_path() + "/node-a-gpushm.dev-abcde", other);
  start();
  ASSERT_TRUE(eventually(
      [&] {
        return cluster_.paths(slices_path()) ==
               std::vector<std::string>{slices_path() + "/node-a-gpushm.dev"};
      },
      timeout));
}

TEST_F(dra_slices, creation_race_is_resolved) {
  cluster_.races = 1;
  start();
  ASSERT_TRUE(becomes([](const json& now) { return devices_of(now) == 4; }));
  ASSERT_TRUE(eventually([&] { return publisher_->now().published; }, timeout));
  EXPECT_EQ(publisher_->now().problem, "");
}

TEST_F(dra_slices, unreachable_or_rejecting_server_is_retried) {
  cluster_.unreachable = true;
  start();
  ASSERT_TRUE(eventually([&] { return !publisher_->now().problem.empty(); }, timeout));
  EXPECT_EQ(publisher_->now().problem,
            "discover \"resource.k8s.io\": connection refused (start the server)");
  EXPECT_FALSE(publisher_->now().published);
  cluster_.error_status = 403;
  cluster_.unreachable = false;
  ASSERT_TRUE(eventually(
      [&] { return publisher_->now().problem.find("not allowed") != std::string::npos; }, timeout));
  cluster_.error_status = 0;
  ASSERT_TRUE(becomes([](const json& now) { return devices_of(now) == 4; }));
  ASSERT_TRUE(eventually([&] { return publisher_->now().published; }, timeout));
}

TEST_F(dra_slices, v1beta1_server_gets_nested_devices) {
  cluster_.set_versions({"v1beta1"});
  start();
  ASSERT_TRUE(eventually([&] { return slice("v1beta1").has_value(); }, timeout));
  EXPECT_TRUE(slice("v1beta1")->at("spec").at("devices").at(0).contains("basic"));
  EXPECT_EQ(slice("v1beta1")->at("apiVersion"), "resource.k8s.io/v1beta1");
}

TEST_F(dra_slices, recreated_node_owns_next_slice) {
  start();
  ASSERT_TRUE(becomes([](const json& now) { return devices_of(now) == 4; }));
  cluster_.put(std::string("/api/v1/nodes/") + test_node, {{"metadata", {{"uid", "node-uid-2"}}}});
  cluster_.erase(slices_path() + "/node-a-gpushm.dev");  // like the garbage collector
  ASSERT_TRUE(becomes([](const json& now) {
    return now.at("metadata").at("ownerReferences").at(0).at("uid") == "node-uid-2";
  }));
}

TEST_F(dra_slices, name_conflict_is_reported_with_next_step) {
  const std::string path = slices_path() + "/node-a-gpushm.dev";
  json conflicting = gpushm::dra::make_slice({test_driver, "node-b", 1}, "v1", "node-uid-b", 99);
  conflicting["metadata"]["name"] = "node-a-gpushm.dev";
  const json before = cluster_.put(path, conflicting);
  start();
  ASSERT_TRUE(eventually([&] { return !publisher_->now().problem.empty(); }, timeout));
  EXPECT_EQ(publisher_->now().problem,
            "publish ResourceSlice \"node-a-gpushm.dev\": a ResourceSlice of node \"node-b\", pool "
            "\"node-b\" and driver \"gpushm.dev\" has this name (find its creator, and remove it: "
            "kubectl get resourceslice node-a-gpushm.dev -o yaml --show-managed-fields; kubectl "
            "delete resourceslice node-a-gpushm.dev; the ValidatingAdmissionPolicy "
            "resourceslices.gpushm.dev prevents agents from using names of other nodes)");
  EXPECT_FALSE(publisher_->now().published);
  EXPECT_EQ(slice(), before);
  cluster_.erase(path);
  ASSERT_TRUE(becomes([](const json& now) { return devices_of(now) == 4; }));
  ASSERT_TRUE(eventually([&] { return publisher_->now().published; }, timeout));
  EXPECT_EQ(publisher_->now().problem, "");
}

TEST_F(dra_slices, slice_of_another_pool_is_recreated) {
  json other = gpushm::dra::make_slice({test_driver, test_node, 4}, "v1", "node-uid-1", 7);
  other["spec"]["pool"]["name"] = "node-b";
  const json before = cluster_.put(slices_path() + "/node-a-gpushm.dev", other);
  start();
  // The pool's name is immutable.
  ASSERT_TRUE(
      becomes([](const json& now) { return now.at("spec").at("pool").at("name") == "node-a"; }));
  EXPECT_NE(slice()->at("metadata").at("uid"), before.at("metadata").at("uid"));
  ASSERT_TRUE(eventually([&] { return publisher_->now().published; }, timeout));
}

TEST_F(dra_slices, slices_of_other_nodes_and_drivers_are_kept) {
  const json node_b = gpushm::dra::make_slice({test_driver, "node-b", 1}, "v1", "node-uid-b", 1);
  const json gpus = gpushm::dra::make_slice({"gpu.nvidia.com", test_node, 1}, "v1", "u", 1);
  cluster_.put(slices_path() + "/node-b-gpushm.dev", node_b);
  cluster_.put(slices_path() + "/node-a-gpu.nvidia.com", gpus);
  start();
  ASSERT_TRUE(becomes([](const json& now) { return devices_of(now) == 4; }));
  cluster_.put(slices_path() + "/node-b-gpushm.dev", node_b);
  ASSERT_TRUE(eventually([&] { return publisher_->now().published; }, timeout));
  EXPECT_EQ(cluster_.writes, 1U);
  EXPECT_EQ(cluster_.paths(slices_path()).size(), 3U);
}

TEST_F(dra_slices, server_mutation_is_reported_and_not_rewritten) {
  cluster_.mutate = [](json& object) {
    if (object.contains("spec")) {
      object["spec"]["devices"][1].erase("attributes");
    }
  };
  start();
  ASSERT_TRUE(eventually([&] { return !publisher_->now().problem.empty(); }, timeout));
  EXPECT_EQ(publisher_->now().problem,
            "publish ResourceSlice \"node-a-gpushm.dev\": the API server keeps "
            "spec.devices[1].attributes with a different value than was written (check whether a "
            "mutating "
            "webhook changes ResourceSlices)");
  std::this_thread::sleep_for(1'500ms);
  // 100, 200, 400 and 800 ms, each up to a quarter shorter.
  EXPECT_LE(cluster_.writes, 6U);
}

TEST_F(dra_slices, repeated_foreign_changes_are_rate_limited) {
  start();
  ASSERT_TRUE(becomes([](const json& now) { return devices_of(now) == 4; }));
  const auto change_again_until = [&](const std::function<bool()>& done) {
    const auto end = std::chrono::steady_clock::now() + timeout;
    while (!done() && std::chrono::steady_clock::now() < end) {
      if (const auto now = slice(); now && devices_of(*now) == 4) {
        json modified = *now;
        modified["spec"]["devices"].erase(0);
        cluster_.put(slices_path() + "/node-a-gpushm.dev", modified);
      }
      std::this_thread::sleep_for(1ms);
    }
  };
  change_again_until([&] { return !publisher_->now().problem.empty(); });
  const auto reported = std::chrono::steady_clock::now();
  change_again_until([&] { return std::chrono::steady_clock::now() > reported + 300ms; });
  EXPECT_GE(cluster_.writes, 5U);
  EXPECT_LE(cluster_.writes, 10U);
  EXPECT_EQ(
      publisher_->now().problem,
      "publish ResourceSlice \"node-a-gpushm.dev\": another client changes or deletes it after "
      "each write; it is written 10 times in a burst and then once in 30 s (find the client: "
      "kubectl "
      "get resourceslice node-a-gpushm.dev -o yaml --show-managed-fields; another agent of "
      "this node, or a controller)");
  EXPECT_FALSE(publisher_->now().published);
}

TEST_F(dra_slices, node_is_fetched_per_update_not_per_event) {
  start();
  ASSERT_TRUE(becomes([](const json& now) { return devices_of(now) == 4; }));
  ASSERT_TRUE(eventually([&] { return publisher_->now().published; }, timeout));
  EXPECT_EQ(cluster_.node_gets, 1U);
  json changed = *slice();
  changed["spec"]["devices"].erase(0);
  cluster_.put(slices_path() + "/node-a-gpushm.dev", changed);
  ASSERT_TRUE(becomes([](const json& now) { return devices_of(now) == 4; }));
  ASSERT_TRUE(eventually([&] { return publisher_->now().published; }, timeout));
  EXPECT_EQ(cluster_.node_gets, 2U);
  for (int round = 0; round < 50; ++round) {
    json noted = *slice();
    noted["metadata"]["annotations"]["round"] = std::to_string(round);
    cluster_.put(slices_path() + "/node-a-gpushm.dev", noted);
    std::this_thread::sleep_for(2ms);
  }
  EXPECT_EQ(cluster_.node_gets, 2U);
  EXPECT_EQ(cluster_.writes, 2U);
}

TEST_F(dra_slices, superfluous_slice_does_not_block_publishing) {
  cluster_.deletion_error_status = 403;
  json other = gpushm::dra::make_slice({test_driver, test_node, 2}, "v1", "node-uid-1", 1);
  other["metadata"]["name"] = "node-a-gpushm.dev-abcde";
  cluster_.put(slices_path() + "/node-a-gpushm.dev-abcde", other);
  start();
  ASSERT_TRUE(becomes([](const json& now) { return devices_of(now) == 4; }));
  EXPECT_TRUE(eventually(
      [&] { return publisher_->now().problem.find("not allowed") != std::string::npos; }, timeout));
  cluster_.deletion_error_status = 0;
  EXPECT_TRUE(eventually([&] { return cluster_.paths(slices_path()).size() == 1; }, timeout));
  EXPECT_TRUE(eventually([&] { return publisher_->now().problem.empty(); }, timeout));
}

TEST_F(dra_slices, generation_wraps_around) {
  json last = gpushm::dra::make_slice(
      {test_driver, test_node, 2}, "v1", "node-uid-1", std::numeric_limits<std::int64_t>::max());
  cluster_.put(slices_path() + "/node-a-gpushm.dev", last);
  start();
  ASSERT_TRUE(becomes([](const json& now) { return devices_of(now) == 4; }));
  EXPECT_EQ(slice()->at("spec").at("pool").at("generation"), 1);
}

/// Simulates a load balancer in front of two API servers without a common version.
class alternating_cluster : public memory_cluster {
 public:
  std::vector<std::string> versions_of(const std::string& /*group*/) override {
    return {++version_queries % 2 == 0 ? "v1" : "v1beta2"};
  }
  std::unique_ptr<subscription> subscribe(
      const std::string& path,
      const std::string& field_selector,
      const gpushm::api_client::collection_watch::handler& handler) override {
    ++subscribed;
    return std::make_unique<failing>(memory_cluster::subscribe(path, field_selector, handler),
                                     handler);
  }

 private:
  /// A subscription whose server never serves the requested version.
  class failing : public subscription {
   public:
    failing(std::unique_ptr<subscription> subscription,
            gpushm::api_client::collection_watch::handler handler)
        : in_(std::move(subscription)),
          thread_([handler = std::move(handler)](const std::stop_token& stop) {
            while (!stop.stop_requested()) {
              handler.failed(gpushm::api_client::api_error(404, "", "watch", "", "page not found"));
              std::this_thread::sleep_for(5ms);
            }
          }) {}
    [[nodiscard]] std::string failure() const override { return "page not found"; }

   private:
    std::unique_ptr<subscription> in_;
    std::jthread thread_;
  };

 public:
  std::atomic<unsigned> version_queries{0};
  std::atomic<unsigned> subscribed{0};
};

TEST(dra_slices_versions, alternating_versions_are_rate_limited) {
  alternating_cluster cluster;
  gpushm::dra::resource_api api(cluster);
  const slice_publisher publisher({test_driver, test_node, 1}, api, cluster, nullptr);
  std::this_thread::sleep_for(1s);
  EXPECT_GE(cluster.subscribed, 2U);
  EXPECT_LE(cluster.subscribed, 6U);
  EXPECT_NE(publisher.now().problem, "");
}

/// Delays the reply to the first creation: meanwhile the slice is deleted, and the watch receives a
/// list without it.
class late_cluster : public memory_cluster {
 public:
  std::unique_ptr<subscription> subscribe(
      const std::string& path,
      const std::string& field_selector,
      const gpushm::api_client::collection_watch::handler& handler) override {
    to_ = handler;
    auto filtered = handler;
    filtered.event = [this](const gpushm::api_client::watch_event& event) {
      if (!late_) {
        to_.event(event);
      }
    };
    return memory_cluster::subscribe(path, field_selector, filtered);
  }
  json create(const std::string& path, const json& object) override {
    json created = memory_cluster::create(path, object);
    if (late_) {
      erase(path + "/" + created.at("metadata").at("name").get<std::string>());
      to_.listed({});
      late_ = false;
    }
    return created;
  }

 private:
  std::atomic<bool> late_{true};
  gpushm::api_client::collection_watch::handler to_;
};

TEST(dra_slices_late, reply_older_than_list_is_discarded) {
  late_cluster cluster;
  gpushm::dra::resource_api api(cluster);
  const slice_publisher publisher({test_driver, test_node, 1}, api, cluster, nullptr);
  EXPECT_TRUE(eventually(
      [&] { return cluster.find(slices_path() + "/node-a-gpushm.dev") && cluster.writes == 2; },
      timeout));
  EXPECT_TRUE(eventually([&] { return publisher.now().published; }, timeout));
  EXPECT_EQ(cluster.writes, 2U);
}

TEST_F(dra_slices, problem_and_recovery_are_logged_once) {
  logged lines;
  cluster_.error_status = 403;
  start();
  ASSERT_TRUE(eventually([&] { return !publisher_->now().problem.empty(); }, timeout));
  std::this_thread::sleep_for(500ms);  // several retries
  cluster_.error_status = 0;
  ASSERT_TRUE(eventually([&] { return publisher_->now().published; }, timeout));
  publisher_.reset();
  EXPECT_THAT(lines.with("ResourceSlice"),
              ElementsAre("ResourceSlice node-a-gpushm.dev is published: 4 devices, generation 1"));
  EXPECT_THAT(lines.with("not allowed"), testing::SizeIs(1));
}

}  // namespace
}  // namespace gpushm_testing
