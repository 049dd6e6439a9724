// SPDX-License-Identifier: Apache-2.0
// Two runc containers whose specs `gpushm cdi inject` wrote share GPU memory, on fake GPUs and on
// real ones if available. Each has a separate image with a C library, a shell and the command; the
// driver, its links and the linker's cache come from the CDI document and its hooks.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "tests/support/cdi/cdi_container.hpp"
#include "tests/support/cdi/cdi_machine.hpp"
#include "tests/support/container/gpu_access.hpp"
#include "tests/support/container/support.hpp"
#include "tests/support/process/deadline.hpp"

namespace gpushm_tests {
namespace {

using gpushm_testing::exited;
using gpushm_testing::scaled_timeout;
using std::chrono::seconds;
using ::testing::HasSubstr;

class cdi_share : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (const auto reason = gpushm_testing::why_no_containers()) {
      GTEST_SKIP() << *reason;
    }
    if (GetParam() && gpushm_testing::nvidia_minors().empty()) {
      GTEST_SKIP() << "no NVIDIA GPU on this machine";
    }
    machine_ = std::make_unique<cdi_machine>(GetParam());
    const auto created = machine_->generate({"--output", documents_ / "gpu.yaml"});
    ASSERT_EQ(created.status, exited(0)) << created.err;
    broker_ = machine_->serve_and_share(domains_.path(), documents_ / "share.yaml");
  }

  [[nodiscard]] cdi_container start(const std::vector<std::string>& devices,
                                    const std::vector<std::string>& arguments) const {
    return start_cdi_container(*machine_, documents_.path(), devices, arguments);
  }

  std::unique_ptr<cdi_machine> machine_;
  gpushm_testing::temp_dir documents_{0755};
  gpushm_testing::temp_dir domains_{0755};
  std::optional<gpushm::broker> broker_;
};

constexpr const char* share_device = "gpushm.dev/share=default";

TEST_P(cdi_share, two_containers_share_bytes) {
  auto producer = start({"nvidia.com/gpu=0", share_device}, role_arguments("producer", 0));
  auto consumer = start({"nvidia.com/gpu=0", share_device}, role_arguments("consumer", 0));
  expect_roles_share(*producer.process, *consumer.process);
}

TEST_P(cdi_share, across_two_gpus) {
  if (!machine_->has_two()) {
    GTEST_SKIP() << "one GPU on this machine";
  }
  auto producer = start({"nvidia.com/gpu=0", share_device}, role_arguments("producer", 0));
  auto consumer = start({"nvidia.com/gpu=all", share_device}, role_arguments("consumer", 1));
  expect_roles_share(*producer.process, *consumer.process);
}

TEST_P(cdi_share, missing_gpu_is_named) {
  if (!machine_->has_two()) {
    GTEST_SKIP() << "one GPU on this machine";
  }
  auto producer = start({"nvidia.com/gpu=0", share_device}, role_arguments("producer", 0));
  auto consumer = start({"nvidia.com/gpu=1", share_device}, role_arguments("consumer", 0));
  EXPECT_EQ(consumer.process->wait_exit(scaled_timeout(seconds(60))), exited(1));
  EXPECT_THAT(consumer.process->text(gpushm_testing::stream::out),
              HasSubstr("\"code\":\"device_not_visible\""));
}

TEST_P(cdi_share, without_share_device_no_broker_is_reachable) {
  auto alone = start({"nvidia.com/gpu=0"}, {"ls"});
  EXPECT_EQ(alone.process->wait_exit(scaled_timeout(seconds(60))), exited(1));
  EXPECT_THAT(alone.process->text(gpushm_testing::stream::err),
              HasSubstr("/run/gpushm/d/default/socket"));
}

INSTANTIATE_TEST_SUITE_P(, cdi_share, ::testing::Bool(), [](const auto& chosen) {
  return chosen.param ? "real_gpu" : "fake_gpu";
});

}  // namespace
}  // namespace gpushm_tests
