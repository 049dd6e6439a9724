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
      [&](const std::string& uuid, const std::string& address) {
        const std::lock_guard lock(mutex);
        if (uuid == "GPU-a" && refusals-- > 0) {
          throw std::runtime_error("no broker");
        }
        taken.push_back(uuid + " " + address);
      },
      1ms);
  const auto taken_reports = [&] {
    const std::lock_guard lock(mutex);
    return taken;
  };
  reports.add("GPU-a", "0000:18:00.0");
  EXPECT_TRUE(eventually([&] { return taken_reports().size() == 1; }, 60s));
  reports.add("GPU-b", "");
  EXPECT_TRUE(eventually([&] { return taken_reports().size() == 2; }, 60s));
  EXPECT_EQ(taken_reports(), (std::vector<std::string>{"GPU-a 0000:18:00.0", "GPU-b "}));
}

/// The agent ends, also without a broker.
TEST(lost_gpu_reports, end_before_they_are_taken) {
  lost_gpu_reports reports(
      [](const std::string& /*uuid*/, const std::string& /*address*/) {
        throw std::runtime_error("no broker");
      },
      std::chrono::hours(1));
  reports.add("GPU-a", "");
}

}  // namespace
}  // namespace gpushm::agent
