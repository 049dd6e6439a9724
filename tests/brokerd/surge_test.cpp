// SPDX-License-Identifier: Apache-2.0
// An upgrade as in Kubernetes: a second container with keeper and broker starts beside the first,
// takes over through a directory of the host, and the first ends. Real containers, in PID
// namespaces of their own, under a uid, without capabilities.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "gpushm/gpushm.hpp"
#include "tests/support/brokerd/brokerd.hpp"
#include "tests/support/container/container.hpp"
#include "tests/support/container/support.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/patient_client.hpp"
#include "tests/support/process/programs.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace {

using namespace std::chrono_literals;
using gpushm_testing::container;
using gpushm_testing::container_options;
using gpushm_testing::eventually;
using gpushm_testing::exited;
using gpushm_testing::own_program;
using gpushm_testing::scaled_timeout;

class surge : public testing::Test {
 protected:
  void SetUp() override {
    if (const auto reason = gpushm_testing::why_no_containers()) {
      GTEST_SKIP() << *reason;
    }
    gpushm_testing::make_run_directory(run_dir_);
  }
  /// As deploy/kustomize/base/brokerd.yaml.
  [[nodiscard]] container start(const std::vector<std::string>& for_broker = {}) const {
    container_options options;
    options.argv = {"--socket",
                    "/tmp/keeper/notify",
                    "--takeover",
                    "/run/gpushm/keeper/takeover",
                    "--stay",
                    "--",
                    own_program("gpushm-brokerd"),
                    "--domain",
                    "default"};
    options.argv.insert(options.argv.end(), for_broker.begin(), for_broker.end());
    gpushm_testing::use_own_program(options, "gpushm-keeper");
    options.uid = gpushm_testing::brokerd_uid();
    options.gid = gpushm_testing::brokerd_uid();
    options.mounts.push_back({run_dir_, "/run/gpushm", true, false});
    return container::start(options);
  }
  /// The readiness probe.
  [[nodiscard]] static bool is_ready(const container& pod) {
    return pod.exec({own_program("gpushm-brokerd"), "check"}).status == exited(0);
  }
  [[nodiscard]] gpushm::client connect() const {
    return gpushm_testing::patient_client(run_dir_ + "/d/default/socket");
  }

  gpushm_testing::temp_dir directory_{0755};
  const std::string run_dir_ = directory_ / "run";
};

TEST_F(surge, next_container_takes_over_while_clients_work) {
  container first = start();
  ASSERT_TRUE(eventually([&] { return is_ready(first); }, scaled_timeout(30s)))
      << first.all_output();
  gpushm::client user = connect();
  gpushm::segment created = user.create(
      "weights", {.size_bytes = 8'192, .device = "host", .lifetime = gpushm::lifetime::persistent});
  created.write(0, std::as_bytes(std::span("contents")));
  created.publish();
  const auto epoch = user.broker().epoch;
  std::atomic<bool> stop = false;
  std::atomic<int> operations = 0;
  std::string failure;
  std::thread load([&] {
    try {
      for (gpushm::client own = connect(); !stop; ++operations) {
        static_cast<void>(own.open("weights"));
      }
    } catch (const std::exception& why) {
      failure = why.what();
    }
  });

  container second = start();
  EXPECT_TRUE(eventually([&] { return is_ready(second); }, scaled_timeout(30s)))
      << second.all_output();
  EXPECT_FALSE(is_ready(first)) << "its broker does not serve any longer";
  EXPECT_TRUE(first.running()) << "it would be started again, and take over in turn";
  first.kill(SIGTERM);
  EXPECT_EQ(first.wait_exit(scaled_timeout(20s)), exited(0));
  const int before = operations;
  EXPECT_TRUE(eventually([&] { return operations > before + 10; }, scaled_timeout(20s)));

  // One that fails: the second continues.
  container third = start({"--no-such-option"});
  EXPECT_NE(third.wait_exit(scaled_timeout(30s)), exited(0));
  EXPECT_TRUE(eventually([&] { return is_ready(second); }, scaled_timeout(30s)))
      << second.all_output();
  EXPECT_TRUE(gpushm_testing::kill_program_kept_by(second.host_pid()));
  EXPECT_TRUE(eventually([&] { return is_ready(second); }, scaled_timeout(30s)));

  stop = true;
  load.join();
  EXPECT_EQ(failure, "");
  EXPECT_EQ(connect().broker().epoch, epoch);
  EXPECT_EQ(created.state(), gpushm::segment_state::live);
  std::string found(8, ' ');
  connect().open("weights").read(0, std::as_writable_bytes(std::span(found)));
  EXPECT_EQ(found, "contents");
}

}  // namespace
