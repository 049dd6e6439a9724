// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushmd/lost_gpu_reports.hpp"

#include <gtest/gtest.h>

#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/process/deadline.hpp"

namespace gpushm::agent {
namespace {

using namespace std::chrono_literals;
using gpushm_testing::eventually;

TEST(lost_gpu_reports, are_repeated_until_they_are_taken) {
  std::mutex mutex;
  std::vector<std::string> taken;
  int refusals = 3;
  lost_gpu_reports reports(
      [&](const base::lost_device& device) {
        const std::lock_guard lock(mutex);
        if (device.uuid == "GPU-a" && refusals-- > 0) {
          throw std::runtime_error("no broker");
        }
        taken.push_back(device.uuid + " " + device.pci_address + " " + base::text_of(device.loss));
      },
      1ms);
  const auto taken_reports = [&] {
    const std::lock_guard lock(mutex);
    return taken;
  };
  reports.add({"GPU-a", "0000:18:00.0", {base::loss_cause::unreachable}});
  EXPECT_TRUE(eventually([&] { return taken_reports().size() == 1; }, 60s));
  reports.add({"GPU-b", ""});
  EXPECT_TRUE(eventually([&] { return taken_reports().size() == 2; }, 60s));
  EXPECT_EQ(taken_reports(),
            (std::vector<std::string>{"GPU-a 0000:18:00.0 the driver cannot reach it", "GPU-b  "}));
}

/// The driver reports an Xid, and loses the GPU then, or the other way round.
TEST(lost_gpu_reports, name_the_xid_if_there_is_one) {
  for (const bool xid_first : {true, false}) {
    std::mutex mutex;
    std::vector<std::string> taken;
    bool is_served = false;
    lost_gpu_reports reports(
        [&](const base::lost_device& device) {
          const std::lock_guard lock(mutex);
          if (!is_served) {
            throw std::runtime_error("no broker");
          }
          taken.push_back(base::text_of(device.loss));
        },
        1ms);
    const base::lost_device xid{"GPU-a", "", {base::loss_cause::xid, 79}};
    const base::lost_device unreachable{"GPU-a", "", {base::loss_cause::unreachable}};
    reports.add(xid_first ? xid : unreachable);
    reports.add(xid_first ? unreachable : xid);
    {
      const std::lock_guard lock(mutex);
      is_served = true;
    }
    EXPECT_TRUE(eventually(
        [&] {
          const std::lock_guard lock(mutex);
          return !taken.empty();
        },
        60s));
    const std::lock_guard lock(mutex);
    EXPECT_EQ(taken.front(), "Xid 79 (the GPU has fallen off the bus)") << xid_first;
  }
}

/// The agent ends, also without a broker.
TEST(lost_gpu_reports, end_before_they_are_taken) {
  lost_gpu_reports reports(
      [](const base::lost_device& /*device*/) { throw std::runtime_error("no broker"); },
      std::chrono::hours(1));
  reports.add({"GPU-a", ""});
}

}  // namespace
}  // namespace gpushm::agent
