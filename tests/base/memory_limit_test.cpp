// SPDX-License-Identifier: Apache-2.0
#include "base/process/memory_limit.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/process/temp_dir.hpp"

namespace gpushm::base {
namespace {

constexpr std::uint64_t mebibyte = std::uint64_t{1} << 20U;

/// A simulated machine.
class memory_of_a_container : public ::testing::Test {
 protected:
  void put(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_.path() + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }

  gpushm_testing::temp_dir root_;
};

TEST_F(memory_of_a_container, is_that_of_version_1) {
  put("/proc/self/cgroup", "4:memory:/kubepods/pod1/c\n");
  put("/proc/self/mountinfo",
      "35 31 0:31 /kubepods/pod1/c /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
  const std::string group = "/sys/fs/cgroup/memory";
  put(group + "/memory.limit_in_bytes", std::to_string(512 * mebibyte) + "\n");
  put(group + "/memory.usage_in_bytes", std::to_string(40 * mebibyte) + "\n");
  put(group + "/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 31\n");
  const auto found = memory_of_container(root_.path());
  ASSERT_TRUE(found);
  EXPECT_EQ(found->limit_bytes, 512 * mebibyte);
  EXPECT_EQ(found->used_bytes, 40 * mebibyte);
  EXPECT_EQ(found->kills, 31U);
}

TEST_F(memory_of_a_container, is_that_of_the_innermost_group_with_a_limit) {
  put("/proc/self/cgroup", "0::/pod/c\n");
  put("/proc/self/mountinfo", "31 22 0:28 / /sys/fs/cgroup ro - cgroup2 none rw\n");
  const std::string pod = "/sys/fs/cgroup/pod";
  put(pod + "/c/memory.max", "max\n");
  put(pod + "/c/memory.current", "7\n");
  put(pod + "/memory.max", std::to_string(64 * mebibyte) + "\n");
  put(pod + "/memory.current", std::to_string(63 * mebibyte) + "\n");
  put(pod + "/memory.events", "low 0\nmax 9\noom 5\noom_kill 3\noom_group_kill 0\n");
  const auto found = memory_of_container(root_.path());
  ASSERT_TRUE(found);
  EXPECT_EQ(found->limit_bytes, 64 * mebibyte);
  EXPECT_EQ(found->used_bytes, 63 * mebibyte);
  EXPECT_EQ(found->kills, 3U);
}

TEST_F(memory_of_a_container, is_unknown_without_a_limit) {
  EXPECT_FALSE(memory_of_container(root_.path()));
  put("/proc/self/cgroup", "0::/\n");
  put("/proc/self/mountinfo", "31 22 0:28 / /sys/fs/cgroup ro - cgroup2 none rw\n");
  EXPECT_FALSE(memory_of_container(root_.path()));
}

}  // namespace
}  // namespace gpushm::base
