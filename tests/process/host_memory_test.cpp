// SPDX-License-Identifier: Apache-2.0
// Host memory at its limits, in a child process: the kernel answers an excess with SIGKILL.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <fstream>
#include <functional>
#include <iostream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/files/sanitizers.hpp"
#include "gpu/memory/backends/backend.hpp"
#include "gpu/memory/backends/host_room.hpp"
#include "gpu/memory/sources/source.hpp"
#include "gpushm/error.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/proc_counters.hpp"

namespace gpushm::memory {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using steady = std::chrono::steady_clock;

constexpr std::uint64_t mib = 1024UL * 1024;
constexpr auto no_deadline = steady::time_point::max();

bool write_to(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text << std::flush;
  return file.good();
}

/// A memory cgroup with a limit, below the root cgroup; root only.
class limited_cgroup {
 public:
  explicit limited_cgroup(std::uint64_t limit_bytes) {
    const std::string name = "/gpushm-test-" + std::to_string(::getpid());
    for (const auto& [top, limit] : {std::pair{"/sys/fs/cgroup/memory", "/memory.limit_in_bytes"},
                                     std::pair{"/sys/fs/cgroup", "/memory.max"}}) {
      path_ = top + name;
      if (::mkdir(path_.c_str(), 0755) != 0) {
        continue;
      }
      if (write_to(path_ + limit, std::to_string(limit_bytes))) {
        // Swap would extend the limit.
        write_to(path_ + "/memory.swap.max", "0");
        write_to(path_ + "/memory.memsw.limit_in_bytes", std::to_string(limit_bytes));
        return;
      }
      ::rmdir(path_.c_str());
    }
    path_.clear();
  }
  limited_cgroup(const limited_cgroup&) = delete;
  limited_cgroup& operator=(const limited_cgroup&) = delete;
  ~limited_cgroup() {
    if (!path_.empty()) {
      (void)gpushm_testing::eventually([&] { return ::rmdir(path_.c_str()) == 0; }, seconds(5));
    }
  }
  explicit operator bool() const { return !path_.empty(); }
  [[nodiscard]] bool join() const {
    return write_to(path_ + "/cgroup.procs", std::to_string(::getpid()));
  }

 private:
  std::string path_;
};

/// Runs `body` in a child within the cgroup; returns its exit code, or 128 + the signal.
int run_in(const limited_cgroup& group, const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    ::_exit(group.join() ? body() : 99);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::unique_ptr<allocation> allocate(std::uint64_t bytes,
                                     steady::time_point deadline = no_deadline) {
  const auto host = backend_for_create("host", false);
  return host->allocate("kv", plan_chunks(bytes, 0, host->granularity()), deadline);
}

std::optional<error> failure_of(std::uint64_t bytes, steady::time_point deadline = no_deadline) {
  try {
    static_cast<void>(allocate(bytes, deadline));
    return std::nullopt;
  } catch (const error& why) {
    return why;
  }
}

TEST(host_memory, beyond_cgroup_limit_is_an_error) {
  const limited_cgroup group(300 * mib);
  if (!group) {
    GTEST_SKIP() << "cannot create a memory cgroup here";
  }
  EXPECT_EQ(run_in(group,
                   [] {
                     const auto why = failure_of(4096 * mib);
                     return !why                                                        ? 1
                            : why->code() != errc::out_of_memory                        ? 2
                            : why->cause().find("(limit 300 MiB)") == std::string::npos ? 3
                                                                                        : 0;
                   }),
            0);
  EXPECT_EQ(run_in(group,
                   [] {
                     const auto most = allocate(200 * mib);  // fits
                     return failure_of(150 * mib).has_value() ? 0 : 1;
                   }),
            0);
}

/// Results of processes that allocate concurrently.
struct crowd_result {
  int got = 0;
  int refused = 0;
  int killed = 0;
  int failed = 0;  ///< with another error, or a deadline
};

/// Starts `processes` in the cgroup that begin concurrently to allocate `bytes` with `threads`
/// each, and keep the memory until all have tried.
crowd_result allocate_concurrently(const limited_cgroup& group,
                                   int processes,
                                   int threads,
                                   std::uint64_t bytes) {
  int ready[2];
  int begin[2];
  int tried[2];
  int end[2];
  EXPECT_EQ(::pipe(ready) + ::pipe(begin) + ::pipe(tried) + ::pipe(end), 0);
  std::vector<pid_t> crowd;
  for (int i = 0; i < processes; ++i) {
    crowd.push_back(::fork());
    if (crowd.back() != 0) {
      continue;
    }
    ::alarm(60);
    // Readers detect the end of a pipe once all writers are closed or dead.
    for (const int unused : {ready[0], begin[1], tried[0], end[1]}) {
      ::close(unused);
    }
    std::atomic<int> wrong = group.join() ? 0 : 1;
    std::vector<std::unique_ptr<allocation>> got(static_cast<std::size_t>(threads));
    ::close(ready[1]);
    char byte = 0;
    wrong += static_cast<int>(::read(begin[0], &byte, 1));
    std::vector<std::thread> busy;
    for (auto& own : got) {
      busy.emplace_back([&] {
        try {
          own = allocate(bytes);
        } catch (const error& why) {
          wrong += why.code() == errc::out_of_memory ? 0 : 1;
        }
      });
    }
    for (std::thread& each : busy) {
      each.join();
    }
    const auto count = std::count_if(got.begin(), got.end(), [](const auto& one) { return !!one; });
    ::close(tried[1]);
    wrong += static_cast<int>(::read(end[0], &byte, 1));
    ::_exit(wrong != 0 ? 100 : static_cast<int>(count));
  }
  for (const int end_of_child : {ready[1], begin[0], tried[1], end[0]}) {
    ::close(end_of_child);
  }
  char byte = 0;
  EXPECT_EQ(::read(ready[0], &byte, 1), 0) << "not all are in the cgroup";
  ::close(begin[1]);
  EXPECT_EQ(::read(tried[0], &byte, 1), 0) << "not all have tried";
  ::close(end[1]);
  crowd_result result;
  for (const pid_t each : crowd) {
    int status = 0;
    EXPECT_EQ(::waitpid(each, &status, 0), each);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
      ++result.killed;
    } else if (!WIFEXITED(status) || WEXITSTATUS(status) == 100) {
      ++result.failed;
    } else {
      result.got += WEXITSTATUS(status);
      result.refused += threads - WEXITSTATUS(status);
    }
  }
  ::close(ready[0]);
  ::close(tried[0]);
  return result;
}

struct crowd_case {
  const char* name;
  std::uint64_t limit_mib;
  int processes;
  int threads;
  std::uint64_t bytes;
};

class crowd : public ::testing::TestWithParam<crowd_case> {};

/// All see the same room at first; checks before each piece, small pieces and a reserve prevent a
/// kill.
TEST_P(crowd, allocating_concurrently_is_not_killed) {
  const crowd_case& values = GetParam();
  const limited_cgroup group(values.limit_mib * mib);
  if (!group) {
    GTEST_SKIP() << "cannot create a memory cgroup here";
  }
  // Each touches 2.1 MiB meanwhile with a sanitizer, 0.15 MiB without: the reserve is 2 to 4 MiB.
  if (gpushm_testing::timeout_factor != 1 && values.processes > 2) {
    GTEST_SKIP() << "instrumented programs touch more memory than is reserved";
  }
  int got = 0;
  int refused = 0;
  const auto deadline = steady::now() + seconds(12);
  for (int round = 0; round < 20 && steady::now() < deadline; ++round) {
    const crowd_result result =
        allocate_concurrently(group, values.processes, values.threads, values.bytes);
    ASSERT_EQ(result.failed, 0) << "round " << round;
    ASSERT_EQ(result.killed, 0) << "round " << round;
    got += result.got;
    refused += result.refused;
  }
  EXPECT_GT(refused, 0) << "together they request more than the limit";
  RecordProperty("got", got);
}

INSTANTIATE_TEST_SUITE_P(host_memory,
                         crowd,
                         ::testing::Values(crowd_case{"two_threads", 600, 1, 2, 400 * mib},
                                           crowd_case{"two_processes", 600, 2, 1, 400 * mib},
                                           crowd_case{"sixteen_processes", 256, 16, 1, 32 * mib},
                                           crowd_case{
                                               "processes_with_threads", 256, 8, 4, 24 * mib},
                                           crowd_case{"small_container", 64, 16, 1, 8 * mib}),
                         [](const auto& values) { return std::string(values.param.name); });

/// Of 64 MiB; the process itself uses some, and the kernel needs more than its pages for each
/// segment. Measured: 58 MiB; 41 MiB with AddressSanitizer, whose shadow is touched, too.
constexpr std::uint64_t nearly_full = (base::under_sanitizer ? 24 : 40) * mib;

/// Smaller segments would need more descriptors than the usual limit of open files.
TEST(host_memory, of_small_segments_ends_in_an_error) {
  const limited_cgroup group(64 * mib);
  if (!group) {
    GTEST_SKIP() << "cannot create a memory cgroup here";
  }
  for (const std::uint64_t bytes : {100'000UL, 1UL << 20U, 15UL << 20U}) {
    EXPECT_EQ(run_in(group,
                     [&] {
                       std::vector<std::unique_ptr<allocation>> allocations;
                       try {
                         for (;;) {
                           allocations.push_back(allocate(bytes));
                         }
                       } catch (const error& why) {
                         const bool is_good = why.code() == errc::out_of_memory &&
                                              allocations.size() * bytes >= nearly_full;
                         if (!is_good) {
                           std::cerr << allocations.size() << " segments, then: " << why.what()
                                     << '\n';
                         }
                         return is_good ? 0 : 1;
                       }
                     }),
              0)
        << bytes;
  }
}

TEST(host_memory, is_released_after_timeout) {
  const auto room = find_host_room();
  if (room && room->bytes < 2048 * mib) {
    GTEST_SKIP() << "only " << room->bytes << " bytes are free here";
  }
  const auto before = gpushm_testing::count_descriptors(::getpid());
  const auto begin = steady::now();
  const auto why = failure_of(1024 * mib, begin + milliseconds(5));
  ASSERT_TRUE(why);
  EXPECT_EQ(why->code(), errc::timed_out) << why->what();
  EXPECT_NE(why->cause().find(" of 1 GiB could be allocated in time"), std::string::npos)
      << why->what();
  EXPECT_LT(steady::now() - begin, gpushm_testing::scaled_timeout(seconds(10)));
  EXPECT_EQ(gpushm_testing::count_descriptors(::getpid()), before);
  EXPECT_EQ(gpushm_testing::count_mappings(::getpid(), "gpushm-chunk"), 0U);
}

// ---- existing memory ----

base::unique_fd sealed_memfd(std::uint64_t bytes) {
  base::unique_fd fd(::memfd_create("shared", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  return fd;
}

/// The number of the mapped file's descriptor is reused for another file and back during the
/// search.
TEST(host_memory, of_memfd_is_not_confused_with_another_file) {
  constexpr std::uint64_t bytes = 4096;
  const auto mapped = sealed_memfd(bytes);
  const auto other = sealed_memfd(bytes);
  void* const address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, mapped.get(), 0);
  ASSERT_NE(address, MAP_FAILED);
  struct stat expected {};
  ASSERT_EQ(::fstat(mapped.get(), &expected), 0);
  // Found before the file's own descriptor, which has a higher number.
  const base::unique_fd moving(::fcntl(mapped.get(), F_DUPFD_CLOEXEC, 0));
  const base::unique_fd kept(::fcntl(mapped.get(), F_DUPFD_CLOEXEC, 500));
  const int closed = ::dup2(other.get(), mapped.get());
  ASSERT_EQ(closed, mapped.get());

  std::atomic<bool> stop{false};
  std::jthread mover([&] {
    while (!stop) {
      ::dup2(other.get(), moving.get());
      ::dup2(kept.get(), moving.get());
    }
  });
  int wrong = 0;
  const auto deadline = steady::now() + seconds(3);
  for (int round = 0; round < 20'000 && steady::now() < deadline; ++round) {
    const auto found = find_source("kv", address, bytes);
    const auto chunk = found->export_chunk(0);
    struct stat got {};
    wrong += ::fstat(chunk.get(), &got) == 0 && got.st_ino == expected.st_ino ? 0 : 1;
  }
  stop = true;
  mover.join();
  EXPECT_EQ(wrong, 0);
  ::munmap(address, bytes);
}

}  // namespace
}  // namespace gpushm::memory
