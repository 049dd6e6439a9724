// SPDX-License-Identifier: Apache-2.0
// Two "pods" share GPU memory through the node agent: a kubelet allocates devices and prepares
// claims, and runc starts the containers with the resulting CDI devices, without privileges, as uid
// 1000. Runs with fake GPUs, and with real GPUs if available.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "tests/kubelet/dra/world.hpp"
#include "tests/support/agent_node/agent_node.hpp"
#include "tests/support/cdi/cdi_container.hpp"
#include "tests/support/container/gpu_access.hpp"
#include "tests/support/container/support.hpp"
#include "tests/support/process/deadline.hpp"

namespace gpushm_tests {
namespace {

using gpushm_testing::claim_number;
using gpushm_testing::claim_object;
using gpushm_testing::claim_path;
using gpushm_testing::dra_claim;
using gpushm_testing::dra_responses;
using gpushm_testing::exited;
using gpushm_testing::scaled_timeout;
using gpushm_testing::stream;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;

class agent_share : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (const auto reason = gpushm_testing::why_no_containers()) {
      GTEST_SKIP() << *reason;
    }
    if (GetParam() && gpushm_testing::nvidia_minors().empty()) {
      GTEST_SKIP() << "no NVIDIA GPU on this machine";
    }
    machine_ = std::make_unique<cdi_machine>(GetParam());
    node_ = std::make_unique<agent_node>(*machine_);
    node_->start_kubelet();
    node_->start_agent({"--per-gpu-resources", "on"});
    ASSERT_TRUE(node_->wait_ready());
  }

  // The CDI devices of a container of `pod` that requests one of each resource.
  [[nodiscard]] std::vector<std::string> allocate(const std::string& pod,
                                                  const std::vector<std::string>& resources) {
    std::vector<std::string> names;
    for (const std::string& resource : resources) {
      const auto devices = node_->kubelet().allocate(pod, resource, 1);
      names.insert(names.end(),
                   devices.allocation.cdi_devices.begin(),
                   devices.allocation.cdi_devices.end());
    }
    return names;
  }
  // A claim on the API server, allocated to this node.
  [[nodiscard]] dra_claim claim(unsigned number) {
    const auto reference = claim_number(number);
    gpushm_testing::test_result result;
    result.device = "share-" + std::to_string(number);
    node_->api().put(claim_path(reference), claim_object(reference, {result}));
    return {reference.name_space, reference.name, reference.uid};
  }
  // The CDI devices of a pod that uses the claim.
  [[nodiscard]] std::vector<std::string> prepare(const dra_claim& used) {
    const dra_responses responses = node_->claims().prepare("gpushm.dev", {used});
    EXPECT_EQ(responses.at(used.uid).error, "");
    std::vector<std::string> all;
    for (const auto& device : responses.at(used.uid).devices) {
      all.insert(all.end(), device.cdi_devices.begin(), device.cdi_devices.end());
    }
    return all;
  }
  static std::vector<std::string> both(std::vector<std::string> left,
                                       const std::vector<std::string>& right) {
    left.insert(left.end(), right.begin(), right.end());
    return left;
  }
  [[nodiscard]] cdi_container start(const std::vector<std::string>& devices,
                                    const std::vector<std::string>& arguments) const {
    return start_cdi_container(*machine_, node_->spec_directory(), devices, arguments);
  }

  std::unique_ptr<cdi_machine> machine_;
  std::unique_ptr<agent_node> node_;
};

constexpr const char* same_gpu = "gpushm.dev/gpu-0";
constexpr const char* share = "gpushm.dev/share";

TEST_P(agent_share, two_pods_of_the_device_plugin) {
  auto producer = start(allocate("one", {same_gpu, share}), role_arguments("producer", 0));
  auto consumer = start(allocate("two", {same_gpu, share}), role_arguments("consumer", 0));
  expect_roles_share(*producer.process, *consumer.process);
  // A reading of the broker may come too late on a loaded machine; the next one counts it.
  EXPECT_TRUE(gpushm_testing::eventually(
      [&] { return node_->metric("gpushm_opens_total{domain=\"default\",by=\"broker\"}") >= 1; },
      std::chrono::seconds(10)))
      << node_->http_get("/metrics");
}

TEST_P(agent_share, two_pods_of_one_claim) {
  const dra_claim shared = claim(1);
  auto producer =
      start(both(allocate("one", {same_gpu}), prepare(shared)), role_arguments("producer", 0));
  // The kubelet uses the cached response.
  auto consumer =
      start(both(allocate("two", {same_gpu}), prepare(shared)), role_arguments("consumer", 0));
  expect_roles_share(*producer.process, *consumer.process);
  const std::string directory = node_->domain_directory("claim-" + shared.uid);
  EXPECT_TRUE(std::filesystem::exists(directory));
  EXPECT_EQ(node_->claims().unprepare("gpushm.dev", {shared}).at(shared.uid).error, "");
  EXPECT_FALSE(std::filesystem::exists(directory));
}

TEST_P(agent_share, two_claims_are_isolated) {
  const dra_claim one = claim(1);
  const dra_claim other = claim(2);
  auto producer =
      start(both(allocate("one", {same_gpu}), prepare(one)), role_arguments("producer", 0));
  producer.process->wait_for_line("\"event\":\"published\"", scaled_timeout(seconds(60)));
  // The same GPU, and a separate, empty domain.
  const auto devices = both(allocate("two", {same_gpu}), prepare(other));
  auto other_claim = start(devices, {"ls", "--json"});
  EXPECT_EQ(other_claim.process->wait_exit(scaled_timeout(seconds(60))), exited(0))
      << other_claim.process->output().all_output();
  EXPECT_THAT(other_claim.process->text(stream::out), Not(HasSubstr("demo/cdi")));
  auto same_claim = start(both(allocate("three", {same_gpu}), prepare(one)), {"ls", "--json"});
  EXPECT_EQ(same_claim.process->wait_exit(scaled_timeout(seconds(60))), exited(0))
      << same_claim.process->output().all_output();
  EXPECT_THAT(same_claim.process->text(stream::out), HasSubstr("demo/cdi"));
  // Neither the directory of the other claim nor that of the default domain is mounted.
  auto other_path = start(
      devices, {"open", "demo/cdi", "--socket", "/run/gpushm/d/claim-" + one.uid + "/socket"});
  EXPECT_EQ(other_path.process->wait_exit(scaled_timeout(seconds(60))), exited(1));
}

INSTANTIATE_TEST_SUITE_P(, agent_share, ::testing::Bool(), [](const auto& chosen) {
  return chosen.param ? "real_gpu" : "fake_gpu";
});

}  // namespace
}  // namespace gpushm_tests
