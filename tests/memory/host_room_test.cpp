// SPDX-License-Identifier: Apache-2.0
#include "gpu/memory/backends/host_room.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/process/temp_dir.hpp"

namespace gpushm::memory {
namespace {

constexpr std::uint64_t mib = 1024UL * 1024;

/// A simulated machine.
class host_room_of_machine : public ::testing::Test {
 protected:
  void put(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_.path() + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void put_machine(std::uint64_t available_mib, std::uint64_t free_swap_mib = 0) {
    put("/proc/meminfo",
        "MemTotal:       16384000 kB\nMemFree:          100000 kB\nMemAvailable:   " +
            std::to_string(available_mib * 1024) +
            " kB\nSwapTotal:  1 kB\nSwapFree:   " + std::to_string(free_swap_mib * 1024) + " kB\n");
  }
  void put_version_2(const std::string& directory,
                     const std::string& limit,
                     std::uint64_t used_mib,
                     std::uint64_t cache_mib) {
    put(directory + "/memory.max", limit + "\n");
    put(directory + "/memory.current", std::to_string(used_mib * mib) + "\n");
    put(directory + "/memory.stat",
        "anon 1\nfile 99999999999\nshmem 5\ninactive_file " + std::to_string(cache_mib * mib / 2) +
            "\nactive_file " + std::to_string(cache_mib * mib / 2) + "\n");
  }
  [[nodiscard]] std::string root() const { return root_.path(); }
  [[nodiscard]] std::uint64_t room_mib() const {
    const auto room = find_host_room(base::memory_bounds(root()));
    return room ? room->free_bytes / mib : 0;
  }

  gpushm_testing::temp_dir root_;
};

TEST_F(host_room_of_machine, is_unknown_without_files) {
  EXPECT_FALSE(find_host_room(base::memory_bounds(root())));
}

TEST_F(host_room_of_machine, is_memory_of_machine) {
  put_machine(1000, 24);
  const auto room = find_host_room(base::memory_bounds(root()));
  ASSERT_TRUE(room);
  EXPECT_EQ(room->free_bytes, 1024 * mib);
  EXPECT_EQ(room->where, "this machine");
}

TEST_F(host_room_of_machine, keeps_reserve_of_each_bound) {
  put_machine(100);
  put("/proc/self/cgroup", "0::/\n");
  put("/proc/self/mountinfo", "31 22 0:28 / /sys/fs/cgroup rw - cgroup2 none rw\n");
  auto room = find_host_room(base::memory_bounds(root()));
  ASSERT_TRUE(room);
  EXPECT_EQ(room->bytes, 36 * mib) << "of a machine of 16 GiB";
  // The cgroup has more free memory than the machine, also after subtracting the reserves.
  put_version_2("/sys/fs/cgroup", std::to_string(512 * mib), 402, 0);
  room = find_host_room(base::memory_bounds(root()));
  ASSERT_TRUE(room);
  EXPECT_EQ(room->where, "this machine");
  put_machine(200);
  room = find_host_room(base::memory_bounds(root()));
  ASSERT_TRUE(room);
  EXPECT_EQ(room->bytes, 102 * mib);
  EXPECT_EQ(room->free_bytes, 110 * mib);
  put_version_2("/sys/fs/cgroup", std::to_string(512 * mib), 511, 0);
  room = find_host_room(base::memory_bounds(root()));
  ASSERT_TRUE(room);
  EXPECT_EQ(room->bytes, 0U) << "less is free than the reserve";
}

TEST_F(host_room_of_machine, version_2_is_tightest_cgroup) {
  put_machine(1000);
  put("/proc/self/cgroup", "0::/pods/one\n");
  put("/proc/self/mountinfo",
      "22 1 0:20 / /sys rw - sysfs sysfs rw\n"
      "31 22 0:28 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw\n");
  put_version_2("/sys/fs/cgroup/pods/one", "max", 10, 0);
  EXPECT_EQ(room_mib(), 1000U) << "no limit";
  put_version_2("/sys/fs/cgroup/pods", std::to_string(300 * mib), 120, 20);
  const auto room = find_host_room(base::memory_bounds(root()));
  ASSERT_TRUE(room);
  EXPECT_EQ(room->free_bytes, 200 * mib) << "the page cache can be dropped";
  EXPECT_EQ(room->where, "the memory cgroup /pods (limit 300 MiB)");
  EXPECT_EQ(room->next_step, "use a smaller size, or raise the container's memory limit");
  put_version_2("/sys/fs/cgroup/pods/one", std::to_string(100 * mib), 10, 0);
  EXPECT_EQ(room_mib(), 90U);
  put_version_2("/sys/fs/cgroup/pods/one", std::to_string(100 * mib), 110, 0);
  EXPECT_EQ(room_mib(), 0U) << "over the limit";
}

TEST_F(host_room_of_machine, includes_swap_allowed_by_cgroup) {
  put_machine(1000, 50);
  put("/proc/self/cgroup", "0::/\n");
  put("/proc/self/mountinfo", "31 22 0:28 / /sys/fs/cgroup rw - cgroup2 none rw\n");
  put_version_2("/sys/fs/cgroup", std::to_string(100 * mib), 20, 0);
  EXPECT_EQ(room_mib(), 80U);
  put("/sys/fs/cgroup/memory.swap.max", "max\n");
  put("/sys/fs/cgroup/memory.swap.current", "0\n");
  EXPECT_EQ(room_mib(), 130U);
  put("/sys/fs/cgroup/memory.swap.max", std::to_string(30 * mib));
  EXPECT_EQ(room_mib(), 110U);
}

TEST_F(host_room_of_machine, version_1_is_tightest_cgroup) {
  put_machine(1000);
  put("/proc/self/cgroup", "5:cpu,cpuacct:/other\n4:hugetlb,memory:/docker/abc/job\n0::/\n");
  put("/proc/self/mountinfo",
      "33 31 0:31 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
      "34 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,hugetlb,memory\n");
  const auto put_limit = [&](const std::string& directory, const std::string& limit) {
    put(directory + "/memory.limit_in_bytes", limit + "\n");
    put(directory + "/memory.usage_in_bytes", std::to_string(50 * mib) + "\n");
    put(directory + "/memory.stat",
        "inactive_file 999999999\ntotal_inactive_file " + std::to_string(10 * mib) +
            "\ntotal_active_file 0\n");
  };
  put_limit("/sys/fs/cgroup/memory/job", "9223372036854771712");
  put_limit("/sys/fs/cgroup/memory", std::to_string(300 * mib));
  const auto room = find_host_room(base::memory_bounds(root()));
  ASSERT_TRUE(room);
  EXPECT_EQ(room->free_bytes, 260 * mib);
  EXPECT_EQ(room->where, "the memory cgroup / (limit 300 MiB)");
  put_limit("/sys/fs/cgroup/memory/job", std::to_string(100 * mib));
  EXPECT_EQ(room_mib(), 60U);
  put_machine(1000, 500);
  put("/sys/fs/cgroup/memory/job/memory.memsw.limit_in_bytes", std::to_string(120 * mib));
  put("/sys/fs/cgroup/memory/job/memory.memsw.usage_in_bytes", std::to_string(50 * mib));
  EXPECT_EQ(room_mib(), 80U) << "memory and swap together";
}

TEST_F(host_room_of_machine, cgroup_outside_mount_uses_mount) {
  put_machine(1000);
  put("/proc/self/cgroup", "0::/../other\n");
  put("/proc/self/mountinfo", "31 22 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  put_version_2("/sys/fs/cgroup", std::to_string(64 * mib), 0, 0);
  EXPECT_EQ(room_mib(), 64U);
}

TEST_F(host_room_of_machine, malformed_files_are_ignored) {
  put_machine(1000);
  put("/proc/self/cgroup", "\n:\n::\n0::/a\nx");
  put("/proc/self/mountinfo", "\n- -\n1 2 3 4 5 -\n31 22 0:28 / /c rw - cgroup2 cgroup2 rw\n");
  put("/c/a/memory.max", "many");
  put("/c/a/memory.current", "");
  put("/c/memory.max", "");
  EXPECT_EQ(room_mib(), 1000U);
}

TEST_F(host_room_of_machine, lowest_limit_is_for_brokers) {
  put("/proc/meminfo", "MemTotal:       1024 kB\n");
  EXPECT_EQ(base::memory_bounds(root()).lowest_limit_bytes(), mib);
  put_machine(1);
  put("/proc/self/cgroup", "0::/pods/one\n");
  put("/proc/self/mountinfo", "31 22 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  EXPECT_EQ(base::memory_bounds(root()).lowest_limit_bytes(), 16'384'000UL * 1024);
  put_version_2("/sys/fs/cgroup/pods", std::to_string(300 * mib), 299, 0);
  put("/sys/fs/cgroup/pods/one/memory.max", std::to_string(200 * mib) + "\n");  // without usage
  EXPECT_EQ(base::memory_bounds(root()).lowest_limit_bytes(), 200 * mib);
  put("/sys/fs/cgroup/pods/one/memory.max", "max\n");
  EXPECT_EQ(base::memory_bounds(root()).lowest_limit_bytes(), 300 * mib);
  put("/proc/self/cgroup", "4:memory:/docker/abc\n");
  put("/proc/self/mountinfo",
      "34 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
  put("/sys/fs/cgroup/memory/memory.limit_in_bytes", std::to_string(50 * mib) + "\n");
  EXPECT_EQ(base::memory_bounds(root()).lowest_limit_bytes(), 50 * mib);
}

TEST(host_room, of_this_machine_is_known) {
  const auto room = find_host_room();
  ASSERT_TRUE(room);
  EXPECT_GT(room->bytes, mib);
}

// ---- allocation ----

host_room room_of(std::uint64_t limit, std::uint64_t free) {
  return {free, free - std::min(free, reserve_of(limit)), {}, {}};
}

TEST(host_room, reserve_is_a_small_part_of_the_limit) {
  EXPECT_EQ(reserve_of(0), 0U);
  EXPECT_EQ(reserve_of(8 * mib), mib);
  EXPECT_EQ(reserve_of(64 * mib), 2 * mib);
  EXPECT_EQ(reserve_of(640 * mib), 10 * mib);
  EXPECT_EQ(reserve_of(1024 * 1024 * mib), 64 * mib);
}

TEST(host_room, largest_segment_is_the_largest_that_has_room) {
  for (const std::uint64_t bytes :
       {0UL, 1UL, 255UL, 256UL, 257UL, 258UL, 513UL, 514UL, 300 * mib + 7}) {
    host_room room;
    room.bytes = bytes;
    const std::uint64_t most = largest_in(room);
    EXPECT_TRUE(has_room(room, most, most)) << bytes;
    EXPECT_FALSE(has_room(room, most + 1, most + 1)) << bytes;
  }
  host_room room;
  room.bytes = 10 * mib;
  EXPECT_FALSE(has_room(room, std::numeric_limits<std::uint64_t>::max(), 1));
  EXPECT_TRUE(has_room(room, mib, 256 * 9 * mib)) << "1 MiB of memory and 9 MiB of page tables";
  EXPECT_FALSE(has_room(room, mib, 256 * 9 * mib + 256));
}

TEST(host_room, nearly_all_of_container_fits_one_segment) {
  for (const std::uint64_t limit : {16 * mib, 64 * mib, 300 * mib, 4096 * mib, 1048576 * mib}) {
    const std::uint64_t most = largest_in(room_of(limit, limit));
    EXPECT_GE(most, limit / 100 * 86) << limit;
    EXPECT_TRUE(limit < 128 * mib || most >= limit / 100 * 97) << limit;
  }
}

TEST(host_room, piece_is_small_part_of_free_memory) {
  EXPECT_EQ(piece_of(room_of(300 * mib, 0)), 64U * 1024);
  EXPECT_EQ(piece_of(room_of(300 * mib, 300 * mib)), 300 * mib / 128 / 65'536 * 65'536);
  EXPECT_EQ(piece_of(room_of(1048576 * mib, 1048576 * mib)), 64 * mib);
  std::uint64_t checks = 0;
  for (std::uint64_t free = 4096 * mib, left = largest_in(room_of(free, free)); left != 0;
       ++checks) {
    const std::uint64_t piece = std::min(left, piece_of(room_of(4096 * mib, free)));
    free -= piece;
    left -= piece;
  }
  EXPECT_LT(checks, 700U) << "to fill a container of 4 GiB";
}

/// All see the same room and allocate their piece before any checks again.
TEST(host_room, concurrent_allocators_do_not_exceed_limit) {
  for (const std::uint64_t limit : {64 * mib, 256 * mib, 600 * mib, 8192 * mib}) {
    for (const std::uint64_t size : {limit / 100, limit / 10, limit / 2, limit / 4 * 3}) {
      const std::uint64_t allocators =
          std::min<std::uint64_t>(128, reserve_of(limit) / min_piece_bytes);
      std::vector<std::uint64_t> left(allocators, size);
      std::uint64_t used = 0;
      while (!left.empty()) {
        const host_room room = room_of(limit, limit - used);
        std::erase_if(left, [&](std::uint64_t& mine) {
          if (!has_room(room, mine, size)) {
            return true;  // never frees anything: the worst case
          }
          const std::uint64_t piece = std::min(mine, piece_of(room));
          mine -= piece;
          used += piece;
          return mine == 0;
        });
        ASSERT_LE(used, limit) << limit << " " << size;
      }
    }
  }
}

}  // namespace
}  // namespace gpushm::memory
