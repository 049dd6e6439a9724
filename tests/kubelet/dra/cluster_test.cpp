// SPDX-License-Identifier: Apache-2.0
// The DRA driver with the real client of the API server, over HTTP, in each version of the API.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "kubernetes/api_client/client.hpp"
#include "kubernetes/dra/driver/driver.hpp"
#include "tests/kubelet/dra/world.hpp"
#include "tests/support/fake_kube_api/fake_kube_api.hpp"
#include "tests/support/fake_kubelet/dra_kubelet.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm_testing {
namespace {

using namespace std::chrono_literals;
using gpushm::dra::driver;
using gpushm::dra::driver_options;
using gpushm::testing::fake_kube_api;

constexpr std::chrono::milliseconds timeout = 20s;

class dra_cluster : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    server_ = std::make_unique<fake_kube_api>(
        gpushm::testing::fake_kube_options{.resource_versions = {GetParam()},
                                           // Servers differ in this respect.
                                           .unserved_has_status = GetParam() == std::string("v1")});
    server_->put(std::string("/api/v1/nodes/") + test_node);
    client_ = std::make_unique<gpushm::api_client::client>(
        gpushm::api_client::server_access{.url = server_->url()});
    dra_kubelet_options kubelet;
    kubelet.root = dir_.path();
    kubelet.delete_slices = [this](const std::string&) {
      for (const json& slice : server_->items(slices_path(GetParam()))) {
        server_->erase(slices_path(GetParam()) + "/" +
                       slice.at("metadata").at("name").get<std::string>());
      }
    };
    kubelet_ = std::make_unique<dra_kubelet>(kubelet);
    start();
  }
  void start() {
    driver_.reset();
    driver_options options;
    options.node_name = test_node;
    options.kubelet_root = dir_.path();
    options.cdi_directory = dir_ / "cdi";
    options.sweep_interval = 200ms;
    options.server_sweep_interval = 200ms;
    driver_ = std::make_unique<driver>(options, *client_, domains_);
    ASSERT_TRUE(kubelet_->wait_registered(test_driver, timeout));
  }
  /// The only slice, once it is published and no longer changes.
  [[nodiscard]] json settled_slice() const {
    EXPECT_TRUE(eventually([&] { return driver_->status().published; }, timeout))
        << driver_->status().slice_problem;
    std::this_thread::sleep_for(300ms);
    const auto items = server_->items(slices_path(GetParam()));
    return items.size() == 1 ? items.at(0) : json();
  }
  [[nodiscard]] std::size_t count_requests(const std::string& method,
                                           const std::string& query) const {
    std::size_t count = 0;
    for (const auto& each : server_->requests()) {
      count += each.method == method && each.query.find(query) != std::string::npos ? 1U : 0U;
    }
    return count;
  }
  void TearDown() override {
    driver_.reset();
    kubelet_.reset();
  }
  [[nodiscard]] bool slices_become(const std::function<bool(const std::vector<json>&)>& is) const {
    return server_->wait_for(slices_path(GetParam()), is, timeout);
  }

  temp_dir dir_;
  broker_domains domains_{dir_ / "run"};
  std::unique_ptr<fake_kube_api> server_;
  std::unique_ptr<gpushm::api_client::client> client_;
  std::unique_ptr<dra_kubelet> kubelet_;
  std::unique_ptr<driver> driver_;
};

TEST_P(dra_cluster, deleted_slice_is_recreated) {
  ASSERT_TRUE(slices_become([](const auto& items) { return items.size() == 1; }));
  const json first = server_->items(slices_path(GetParam())).at(0);
  EXPECT_EQ(first.at("spec").at("devices").size(), 64U);
  EXPECT_EQ(first.at("metadata").at("ownerReferences").at(0).at("kind"), "Node");
  for (int round = 0; round < 3; ++round) {
    const json uid = server_->items(slices_path(GetParam())).at(0).at("metadata").at("uid");
    server_->erase(slices_path(GetParam()) + "/" +
                   first.at("metadata").at("name").get<std::string>());
    ASSERT_TRUE(slices_become([&](const auto& items) {
      return items.size() == 1 && items.at(0).at("metadata").at("uid") != uid;
    })) << driver_->status().slice_problem;
  }
}

TEST_P(dra_cluster, slice_is_restored_after_lost_watch_and_history) {
  ASSERT_TRUE(server_->wait_for_watches(1, timeout));
  ASSERT_TRUE(slices_become([](const auto& items) { return items.size() == 1; }));
  const std::string path = slices_path(GetParam()) + "/node-a-gpushm.dev";
  server_->expire_history();
  server_->cut_watches();
  server_->erase(path);
  EXPECT_TRUE(slices_become([](const auto& items) { return items.size() == 1; }))
      << driver_->status().slice_problem;
}

TEST_P(dra_cluster, restart_does_not_rewrite_slice) {
  const json before = settled_slice();
  ASSERT_TRUE(before.is_object());
  for (int round = 0; round < 2; ++round) {
    server_->clear_requests();
    start();
    EXPECT_EQ(settled_slice(), before);
    EXPECT_GE(count_requests("GET", "limit="), 1U);
    EXPECT_EQ(count_requests("PUT", "") + count_requests("POST", ""), 0U);
  }
}

TEST_P(dra_cluster, list_after_410_does_not_rewrite_slice) {
  const json before = settled_slice();
  ASSERT_TRUE(before.is_object());
  server_->clear_requests();
  server_->expire_history();
  ASSERT_TRUE(eventually([&] { return count_requests("GET", "limit=") >= 1; }, timeout));
  EXPECT_EQ(settled_slice(), before);
  EXPECT_EQ(count_requests("PUT", "") + count_requests("POST", ""), 0U);
}

TEST_P(dra_cluster, api_version_upgrade_is_followed) {
  ASSERT_TRUE(settled_slice().is_object());
  ASSERT_TRUE(server_->wait_for_watches(1, timeout));
  const std::string other = std::string(GetParam()) == "v1" ? "v1beta2" : "v1";
  server_->clear_requests();
  server_->set_resource_versions({other});
  server_->end_watches();
  ASSERT_TRUE(server_->wait_for_request(
      [&](const auto& each) {
        return each.path == slices_path(other) && each.status == 200 &&
               each.query.find("watch=1") != std::string::npos;
      },
      timeout));
  EXPECT_EQ(count_requests("PUT", "") + count_requests("POST", ""), 0U);
  // An upgraded kubelet deletes the slice.
  const std::string path = slices_path(other) + "/node-a-gpushm.dev";
  const json before = server_->find(path).value();
  server_->erase(path);
  ASSERT_TRUE(eventually(
      [&] {
        const auto now = server_->find(path);
        return now && now->at("metadata").at("uid") != before.at("metadata").at("uid");
      },
      timeout));
  EXPECT_TRUE(eventually([&] { return driver_->status().slice_problem.empty(); }, timeout));
}

TEST_P(dra_cluster, claims_survive_removed_api_version) {
  const claim_reference claim = claim_number(1);
  server_->put(claim_path(claim, GetParam()), claim_object(claim));
  static_cast<void>(kubelet_->prepare(test_driver, {{claim.name_space, claim.name, claim.uid}}));
  ASSERT_EQ(driver_->status().claims, 1U);
  // Discovery still lists the version; later, it lists none.
  server_->fail({.path_prefix = claim_path(claim, GetParam()),
                 .times = 1'000,
                 .status = 404,
                 .reason = "NotFound",
                 .message = "the server could not find the requested resource"});
  server_->clear_requests();
  const auto claim_request = [&](const auto& each) {
    return each.path == claim_path(claim, GetParam()) && each.status == 404;
  };
  ASSERT_TRUE(server_->wait_for_request(claim_request, timeout));
  server_->clear_requests();
  ASSERT_TRUE(server_->wait_for_request(claim_request, timeout));  // the next sweep
  EXPECT_EQ(driver_->status().claims, 1U);
  server_->clear_failures();
  server_->set_resource_versions({});
  std::this_thread::sleep_for(500ms);
  EXPECT_EQ(driver_->status().claims, 1U);
}

TEST_P(dra_cluster, deleted_claim_is_swept) {
  const claim_reference claim = claim_number(1);
  server_->put(claim_path(claim, GetParam()), claim_object(claim));
  const dra_responses responses =
      kubelet_->prepare(test_driver, {{claim.name_space, claim.name, claim.uid}});
  EXPECT_EQ(responses.at(claim.uid).error, "");
  EXPECT_EQ(responses.at(claim.uid).devices.size(), 1U);
  EXPECT_EQ(driver_->status().claims, 1U);
  server_->stop();
  server_->erase(claim_path(claim, GetParam()));
  EXPECT_EQ(driver_->status().claims, 1U);
  server_->start();
  EXPECT_TRUE(eventually([&] { return driver_->status().claims == 0; }, timeout));
  EXPECT_THAT(names_in(dir_ / "cdi"), testing::IsEmpty());
  EXPECT_TRUE(eventually([&] { return names_in(dir_ / "run").empty(); }, timeout));
}

INSTANTIATE_TEST_SUITE_P(versions,
                         dra_cluster,
                         testing::Values("v1", "v1beta2", "v1beta1"),
                         [](const auto& each) { return std::string(each.param); });

}  // namespace
}  // namespace gpushm_testing
