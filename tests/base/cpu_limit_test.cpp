// SPDX-License-Identifier: Apache-2.0
#include "base/process/cpu_limit.hpp"

#include <gtest/gtest.h>
#include <sched.h>

#include <filesystem>
#include <fstream>

#include "tests/support/process/temp_dir.hpp"

namespace gpushm::base {
namespace {

class cpu_limit_of_machine : public testing::Test {
 protected:
  cpu_limit_of_machine() {
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    EXPECT_EQ(::sched_getaffinity(0, sizeof allowed, &allowed), 0);
    runnable_ = CPU_COUNT(&allowed);
  }
  void put(const std::string& path, const std::string& text) const {
    const std::filesystem::path at = root_ / path;
    std::filesystem::create_directories(at.parent_path());
    std::ofstream(at) << text;
  }
  void use_version_2() const {
    put("proc/self/cgroup", "0::/a/b\n");
    put("proc/self/mountinfo", "30 20 0:26 / /cg rw - cgroup2 cgroup2 rw\n");
  }

  gpushm_testing::temp_dir root_;
  double runnable_ = 0;
};

TEST_F(cpu_limit_of_machine, without_cgroups_is_affinity) {
  EXPECT_EQ(cpu_limit(root_.path()), runnable_);
  EXPECT_GT(cpu_limit(), 0);
  EXPECT_LE(cpu_limit(), runnable_);
}

TEST_F(cpu_limit_of_machine, version_2_is_lowest_quota_of_parents) {
  use_version_2();
  put("cg/a/b/cpu.max", "max 100000\n");
  EXPECT_EQ(cpu_limit(root_.path()), runnable_);
  put("cg/a/cpu.max", "50000 100000\n");
  EXPECT_EQ(cpu_limit(root_.path()), 0.5);
  put("cg/a/b/cpu.max", "20000 100000\n");
  EXPECT_EQ(cpu_limit(root_.path()), 0.2);
}

TEST_F(cpu_limit_of_machine, version_1_is_lowest_quota_of_parents) {
  put("proc/self/cgroup", "4:cpu,cpuacct:/a/b\n0::/\n");
  put("proc/self/mountinfo", "31 20 0:27 / /cg/cpu rw - cgroup cgroup rw,cpu,cpuacct\n");
  put("cg/cpu/a/b/cpu.cfs_quota_us", "-1\n");
  put("cg/cpu/a/b/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cpu_limit(root_.path()), runnable_);
  put("cg/cpu/a/cpu.cfs_quota_us", "25000\n");
  put("cg/cpu/a/cpu.cfs_period_us", "50000\n");
  EXPECT_EQ(cpu_limit(root_.path()), 0.5);
}

TEST_F(cpu_limit_of_machine, invalid_quota_is_ignored) {
  use_version_2();
  for (const char* text : {"", "x", "0 100000", "-5 100000", "100 0", "100", "\xff"}) {
    put("cg/a/b/cpu.max", text);
    EXPECT_EQ(cpu_limit(root_.path()), runnable_) << text;
  }
}

}  // namespace
}  // namespace gpushm::base
