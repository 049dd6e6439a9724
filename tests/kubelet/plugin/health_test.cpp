// SPDX-License-Identifier: Apache-2.0
// When a GPU becomes unhealthy and healthy again. The tests set the time.
#include <gtest/gtest.h>

#include "kubernetes/device_plugin/health/gpu_record.hpp"
#include "kubernetes/device_plugin/health/monitor.hpp"
#include "tests/kubelet/plugin/world.hpp"

namespace gpushm::device_plugin {
namespace {

using gpushm_tests::what;
using namespace std::chrono_literals;

constexpr auto quiet = std::chrono::milliseconds(300s);

class plugin_gpu_record : public ::testing::Test {
 protected:
  void poll(std::chrono::seconds at, const gpu_status& seen = {}) {
    record_.update(seen, start_ + at, quiet);
  }
  void xid(std::uint64_t number, std::chrono::seconds at) { record_.xid(number, start_ + at); }
  [[nodiscard]] std::string state() const {
    const gpu_health now = record_.health();
    EXPECT_EQ(now.healthy, now.reason.empty());
    return now.healthy ? "healthy" : now.reason;
  }
  static gpu_status lost() { return {false, "NVML_ERROR_GPU_IS_LOST (15)", {}}; }
  static gpu_status requests(unsigned int action) { return {true, {}, action}; }

  gpu_record record_;
  gpu_record::time_point start_;
};

TEST_F(plugin_gpu_record, is_initially_healthy) {
  EXPECT_EQ(state(), "healthy");
  poll(5s);
  poll(1000s, requests(0));
  EXPECT_EQ(state(), "healthy");
}

TEST_F(plugin_gpu_record, xid_expires_after_quiet_period) {
  xid(8, 10s);
  EXPECT_EQ(state(), "Xid 8");
  poll(15s);
  poll(309s);
  EXPECT_EQ(state(), "Xid 8");
  poll(310s);
  EXPECT_EQ(state(), "healthy");
}

TEST_F(plugin_gpu_record, another_xid_restarts_the_quiet_period) {
  xid(8, 10s);
  xid(94, 200s);
  EXPECT_EQ(state(), "Xid 94 (contained memory error)");
  poll(499s);
  EXPECT_EQ(state(), "Xid 94 (contained memory error)");
  poll(500s);
  EXPECT_EQ(state(), "healthy");
}

TEST_F(plugin_gpu_record, reset_only_errors_stay_until_a_reset) {
  xid(48, 10s);
  poll(10'000s);
  EXPECT_EQ(state(), "Xid 48 (uncorrectable memory error)");
  // A later Xid does not cancel the need for a reset.
  xid(8, 10'001s);
  poll(20'000s);
  EXPECT_EQ(state(), "Xid 8");
  poll(20'001s, lost());
  EXPECT_EQ(state(), "it does not respond: NVML_ERROR_GPU_IS_LOST (15)");
  poll(20'002s);
  EXPECT_EQ(state(), "healthy");
}

TEST_F(plugin_gpu_record, reported_recovery_action_decides) {
  xid(79, 10s);
  poll(11s, requests(1));
  EXPECT_EQ(state(),
            "the driver requests a reset of the GPU after Xid 79 (the GPU has fallen off the bus)");
  poll(1000s, requests(1));
  EXPECT_NE(state(), "healthy");
  poll(1001s, requests(0));
  EXPECT_EQ(state(), "healthy");
  // The driver requests no action: the quiet period is sufficient, even after Xids that otherwise
  // need a reset.
  xid(95, 2000s);
  poll(2001s, requests(0));
  EXPECT_EQ(state(), "Xid 95 (uncontained memory error)");
  poll(2300s, requests(0));
  EXPECT_EQ(state(), "healthy");
  poll(2301s, requests(2));
  EXPECT_EQ(state(), "the driver requests a reboot of the node");
  poll(2302s, requests(9));
  EXPECT_EQ(state(), "the driver requests recovery action 9");
}

TEST_F(plugin_gpu_record, lost_gpu_returns_with_pending_reset) {
  poll(1s, requests(1));
  poll(2s, lost());
  poll(3s, requests(1));
  EXPECT_EQ(state(), "the driver requests a reset of the GPU");
  poll(4s, requests(0));
  EXPECT_EQ(state(), "healthy");
}

TEST_F(plugin_gpu_record, memory_errors_need_a_reset) {
  record_.memory_error(start_);
  poll(10'000s);
  EXPECT_EQ(state(), "uncorrected memory error");
  poll(10'001s, lost());
  poll(10'002s);
  EXPECT_EQ(state(), "healthy");
}

TEST(plugin_xids, application_xids_are_added_and_removed) {
  health_options options;
  change_application_xids(options, "48, -31,+99,-13", "X");
  EXPECT_EQ(options.application_xids, (std::set<std::uint64_t>{43, 45, 48, 68, 99, 109}));
  EXPECT_TRUE(options.any_xid);
  change_application_xids(options, "", "X");
  EXPECT_EQ(options.application_xids.size(), 6U);
  change_application_xids(options, "xids", "X");
  EXPECT_FALSE(options.any_xid);
  health_options kept;
  EXPECT_EQ(what([&] { change_application_xids(kept, "48,many", "--application-xids"); }),
            "set --application-xids \"many\": not an Xid (write comma-separated numbers, with - in "
            "front of critical ones, or all"
            ")");
  EXPECT_EQ(kept.application_xids, health_options().application_xids);
}

}  // namespace
}  // namespace gpushm::device_plugin
