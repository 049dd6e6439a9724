// SPDX-License-Identifier: Apache-2.0
#include "tests/support/process/proc_counters.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "base/files/file.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/harness_error.hpp"

namespace gpushm_testing {
namespace {

using gpushm::base::unique_fd;

unique_fd shared_file(const char* name, std::size_t size_bytes) {
  unique_fd fd(::memfd_create(name, MFD_CLOEXEC));
  EXPECT_EQ(::fallocate(fd.get(), 0, 0, static_cast<off_t>(size_bytes)), 0);
  return fd;
}

TEST(proc_counters, counts_descriptors_by_kind) {
  const auto before = count_descriptors(::getpid());
  const auto file = shared_file("counted-one", 4096);
  const unique_fd socket(::socket(AF_UNIX, SOCK_STREAM, 0));
  const auto after = count_descriptors(::getpid());
  EXPECT_EQ(total(after), total(before) + 2) << to_text(after);
  EXPECT_EQ(total(after, "memfd:counted-one"), 1U) << to_text(after);
  EXPECT_EQ(total(after, "socket"), total(before, "socket") + 1) << to_text(after);
}

TEST(proc_counters, counts_mappings_by_name) {
  const auto file = shared_file("counted-two", 4096);
  EXPECT_EQ(count_mappings(::getpid(), "memfd:counted-two"), 0U);
  const auto mapping = gpushm::base::map_file("test", file.get(), 4096, true);
  EXPECT_EQ(count_mappings(::getpid(), "memfd:counted-two"), 1U);
}

TEST(proc_counters, counts_each_shared_byte_once) {
  constexpr std::size_t size_bytes = 1U << 20U;
  auto file = shared_file("counted-three", size_bytes);
  const unique_fd same(::dup(file.get()));
  EXPECT_EQ(shared_memory_bytes({::getpid()}, "counted-three"), size_bytes);
  EXPECT_EQ(shared_memory_bytes({::getpid(), ::getpid()}, "counted-three"), size_bytes);
}

TEST(proc_counters, counts_bytes_that_are_only_mapped) {
  if (::geteuid() != 0) {
    GTEST_SKIP() << "/proc/PID/map_files needs root";
  }
  constexpr std::size_t size_bytes = 1U << 20U;
  auto file = shared_file("counted-four", size_bytes);
  auto mapping = gpushm::base::map_file("test", file.get(), size_bytes, true);
  file.reset();
  EXPECT_EQ(shared_memory_bytes({::getpid()}, "counted-four"), size_bytes);
  mapping.reset();
  EXPECT_EQ(shared_memory_bytes({::getpid()}, "counted-four"), 0U);
}

TEST(proc_counters, counts_threads_and_memory) {
  std::thread([] {}).join();  // the first may start a permanent helper thread of the runtime
  // The kernel may still count a joined thread.
  EXPECT_TRUE(eventually(
      [] {
        const auto before = count_threads(::getpid());
        const std::jthread one([](const std::stop_token& stop) {
          while (!stop.stop_requested()) {
            std::this_thread::yield();
          }
        });
        return count_threads(::getpid()) == before + 1;
      },
      std::chrono::seconds(20)));
  EXPECT_GT(anonymous_bytes(::getpid()), 0U);
}

TEST(proc_counters, ended_process_is_an_error) {
  EXPECT_THROW((void)count_descriptors(0x7fffffff), harness_error);
}

}  // namespace
}  // namespace gpushm_testing
