// SPDX-License-Identifier: Apache-2.0
// The DRA driver with the real client of the API server, over HTTP, in each version of the API.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "dra_world.hpp"
#include "fake_kube_api/fake_kube_api.hpp"
#include "fake_kubelet/dra_kubelet.hpp"
#include "kubelet/dra/driver.hpp"
#include "kubelet/rest/client.hpp"
#include "process/deadline.hpp"
#include "process/temp_dir.hpp"

namespace gpushm_testing {
namespace {

using namespace std::chrono_literals;
using gpushm::dra::driver;
using gpushm::dra::driver_options;
using gpushm::testing::fake_kube_api;

constexpr std::chrono::milliseconds soon = 20s;

class dra_cluster : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    server_ = std::make_unique<fake_kube_api>(
        gpushm::testing::fake_kube_options{.resource_versions = {GetParam()}});
    server_->put(std::string("/api/v1/nodes/") + test_node);
    client_ =
        std::make_unique<gpushm::kube::client>(gpushm::kube::server_access{.url = server_->url()});
    dra_kubelet_options kubelet;
    kubelet.root = dir_.path();
    kubelet.delete_slices = [this](const std::string&) {
      for (const json& slice : server_->items(slices_path(GetParam()))) {
        server_->erase(slices_path(GetParam()) + "/" +
                       slice.at("metadata").at("name").get<std::string>());
      }
    };
    kubelet_ = std::make_unique<dra_kubelet>(kubelet);
    driver_options options;
    options.node_name = test_node;
    options.kubelet_root = dir_.path();
    options.cdi_directory = dir_ / "cdi";
    options.sweep_interval = 200ms;
    driver_ = std::make_unique<driver>(options, *client_, domains_);
    ASSERT_TRUE(kubelet_->wait_registered(test_driver, soon));
  }
  void TearDown() override {
    driver_.reset();
    kubelet_.reset();
  }
  [[nodiscard]] bool slices_become(const std::function<bool(const std::vector<json>&)>& is) const {
    return server_->wait_for(slices_path(GetParam()), is, soon);
  }

  temp_dir dir_;
  broker_domains domains_{dir_ / "run"};
  std::unique_ptr<fake_kube_api> server_;
  std::unique_ptr<gpushm::kube::client> client_;
  std::unique_ptr<dra_kubelet> kubelet_;
  std::unique_ptr<driver> driver_;
};

TEST_P(dra_cluster, a_server_takes_the_slice_and_it_comes_back_when_it_is_deleted) {
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

TEST_P(dra_cluster, after_lost_watches_and_history_the_slice_is_still_kept) {
  ASSERT_TRUE(server_->wait_for_watches(1, soon));
  ASSERT_TRUE(slices_become([](const auto& items) { return items.size() == 1; }));
  const std::string path = slices_path(GetParam()) + "/node-a-gpushm.dev";
  server_->expire_history();
  server_->cut_watches();
  server_->erase(path);
  EXPECT_TRUE(slices_become([](const auto& items) { return items.size() == 1; }))
      << driver_->status().slice_problem;
}

TEST_P(dra_cluster, a_claim_is_prepared_and_swept_when_it_is_gone) {
  const claim_reference claim = claim_number(1);
  server_->put(claim_path(claim, GetParam()), claim_object(claim));
  const dra_answers answers =
      kubelet_->prepare(test_driver, {{claim.name_space, claim.name, claim.uid}});
  EXPECT_EQ(answers.at(claim.uid).error, "");
  EXPECT_EQ(answers.at(claim.uid).devices.size(), 1U);
  EXPECT_EQ(driver_->status().claims, 1U);
  server_->stop();
  server_->erase(claim_path(claim, GetParam()));
  EXPECT_EQ(driver_->status().claims, 1U);
  server_->start();
  EXPECT_TRUE(eventually([&] { return driver_->status().claims == 0; }, soon));
  EXPECT_THAT(names_in(dir_ / "cdi"), testing::IsEmpty());
  EXPECT_TRUE(eventually([&] { return names_in(dir_ / "run").empty(); }, soon));
}

INSTANTIATE_TEST_SUITE_P(versions,
                         dra_cluster,
                         testing::Values("v1", "v1beta2", "v1beta1"),
                         [](const auto& each) { return std::string(each.param); });

}  // namespace
}  // namespace gpushm_testing
