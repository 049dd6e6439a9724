// SPDX-License-Identifier: Apache-2.0
#include "sync/cpu_wait.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <stop_token>
#include <thread>
#include <vector>

#include "base/files/file.hpp"
#include "base/files/unique_fd.hpp"
#include "base/process/signals.hpp"
#include "tests/support/process/deadline.hpp"

namespace gpushm::sync {
namespace {

using namespace std::chrono_literals;
using clock = std::chrono::steady_clock;

/// A page as two processes have it: mapped for writing, and again for reading only.
class shared_page : public testing::Test {
 protected:
  shared_page() {
    EXPECT_EQ(::ftruncate(file_.get(), timeline_page_bytes), 0);
    written_ = static_cast<timeline_page*>(map(PROT_READ | PROT_WRITE));
    read_ = static_cast<const timeline_page*>(map(PROT_READ));
  }
  ~shared_page() override {
    ::munmap(written_, timeline_page_bytes);
    ::munmap(const_cast<timeline_page*>(read_), timeline_page_bytes);
  }
  [[nodiscard]] void* map(int protection) const {
    void* const address =
        ::mmap(nullptr, timeline_page_bytes, protection, MAP_SHARED, file_.get(), 0);
    EXPECT_NE(address, MAP_FAILED);
    return address;
  }
  [[nodiscard]] timeline_writer writer(std::uint32_t index = 0) const { return {*written_, index}; }
  [[nodiscard]] timeline_reader reader(std::uint32_t index = 0) const { return {*read_, index}; }
  [[nodiscard]] static clock::time_point soon(std::chrono::milliseconds after = 20s) {
    return clock::now() + after;
  }

  gpushm::base::unique_fd file_{::memfd_create("page", MFD_CLOEXEC)};
  timeline_page* written_ = nullptr;
  const timeline_page* read_ = nullptr;
};

TEST_F(shared_page, returns_at_once_what_is_known) {
  writer().signal(5);
  EXPECT_EQ(wait(reader(), 0, {}), wait_result::reached);
  EXPECT_EQ(wait(reader(), 5, {}), wait_result::reached);
  EXPECT_EQ(wait(reader(), 6, {}), wait_result::timed_out);
  EXPECT_EQ(try_wait(reader(), 6), wait_result::timed_out);
  writer().close(word_kind::ended);
  EXPECT_EQ(wait(reader(), 5, soon()), wait_result::reached) << "before its end";
  EXPECT_EQ(wait(reader(), 6, soon()), wait_result::ended);
  writer(1).close(word_kind::moved);
  EXPECT_EQ(wait(reader(1), 1, soon()), wait_result::moved);
  written_->words[2] = max_value + 1;
  EXPECT_EQ(wait(reader(2), 1, soon()), wait_result::invalid);
}

TEST_F(shared_page, deadline_ends_each_kind_of_wait) {
  for (const bool streams : {false, true}) {
    if (streams) {
      writer().use_streams();
    }
    const auto begin = clock::now();
    EXPECT_EQ(wait(reader(), 1, begin + 30ms), wait_result::timed_out);
    EXPECT_GE(clock::now() - begin, 30ms);
  }
}

TEST_F(shared_page, stop_ends_each_kind_of_wait) {
  for (const bool streams : {false, true}) {
    if (streams) {
      writer().use_streams();
    }
    std::stop_source stop;
    const std::jthread stopper([&] {
      std::this_thread::sleep_for(20ms);
      stop.request_stop();
    });
    EXPECT_EQ(wait(reader(), 1, soon(), stop.get_token()), wait_result::stopped);
  }
}

/// Each waiter sees each value's data: a missed wake-up would take until the deadline. All use one
/// mapping: ThreadSanitizer does not know that two are the same memory.
TEST_F(shared_page, values_order_what_was_written_before) {
  constexpr std::uint64_t rounds = 3'000;
  constexpr std::uint32_t waiters = 4;
  std::uint64_t data = 0;  // not atomic: the timelines order it
  std::vector<std::jthread> threads;
  std::atomic<std::uint64_t> wrong{0};
  for (std::uint32_t i = 1; i <= waiters; ++i) {
    threads.emplace_back([&, i] {
      for (std::uint64_t round = 1; round <= rounds; ++round) {
        if (wait(writer(0).reader(), round, soon()) != wait_result::reached || data != round * 3) {
          ++wrong;
        }
        writer(i).signal(round);
      }
    });
  }
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    for (std::uint32_t i = 1; i <= waiters; ++i) {
      ASSERT_EQ(wait(writer(i).reader(), round - 1, soon()), wait_result::reached);
    }
    data = round * 3;
    ASSERT_EQ(writer(0).signal(round), signal_result::done);
  }
  threads.clear();
  EXPECT_EQ(wrong, 0U);
}

TEST_F(shared_page, an_end_wakes_all_waiters) {
  constexpr std::size_t count = 64;
  std::vector<std::jthread> threads;
  std::atomic<std::size_t> ended{0};
  std::atomic<std::size_t> started{0};
  for (std::size_t i = 0; i != count; ++i) {
    threads.emplace_back([&] {
      ++started;
      ended += wait(reader(), 1, soon()) == wait_result::ended ? 1U : 0U;
    });
  }
  ASSERT_TRUE(gpushm_testing::eventually([&] { return started == count; }, 10s));
  std::this_thread::sleep_for(20ms);  // most of them sleep
  writer().close(word_kind::ended);
  threads.clear();
  EXPECT_EQ(ended, count);
}

/// With a mapping that is read-only, in another process, which is stopped in between.
TEST_F(shared_page, orders_two_processes) {
  constexpr std::uint64_t rounds = 2'000;
  const pid_t other = ::fork();
  if (other == 0) {
    for (std::uint64_t round = 1; round <= rounds; ++round) {
      if (wait(reader(0), round, soon()) != wait_result::reached) {
        ::_exit(1);
      }
      writer(1).signal(round);
    }
    ::_exit(0);
  }
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    writer(0).signal(round);
    if (round % 500 == 0) {
      gpushm::base::signal_process(other, SIGSTOP);
      EXPECT_EQ(wait(reader(1), round + 1, clock::now() + 2ms), wait_result::timed_out);
      gpushm::base::signal_process(other, SIGCONT);
    }
    ASSERT_EQ(wait(reader(1), round, soon()), wait_result::reached);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(other, &status, 0), other);
  EXPECT_EQ(status, 0);
}

/// A signal that leaves the lower half as it was, and a stream that was not announced.
TEST_F(shared_page, a_store_that_wakes_nobody_is_noticed) {
  std::jthread other([&] {
    std::this_thread::sleep_for(30ms);
    written_->words[0] = std::uint64_t{1} << 32U;
  });
  EXPECT_EQ(wait(reader(), std::uint64_t{1} << 32U, soon()), wait_result::reached);
  other.join();
  other = std::jthread([&] {
    std::this_thread::sleep_for(30ms);
    writer(1).use_streams();
    written_->words[1] = 1;
  });
  EXPECT_EQ(wait(reader(1), 1, soon()), wait_result::reached);
}

/// They poll at first, and sleep then.
TEST_F(shared_page, many_waiters_notice_a_signal_at_any_time) {
  timeline_writer signaler = writer();
  signaler.expect_many();
  EXPECT_TRUE(reader().is_waited_for_by_many());
  std::uint64_t value = 0;
  for (const auto pause : {0ms, 1ms, 20ms}) {
    ++value;
    std::vector<std::jthread> waiters;
    std::atomic<int> reached{0};
    for (int i = 0; i != 16; ++i) {
      waiters.emplace_back(
          [&] { reached += wait(reader(), value, soon()) == wait_result::reached ? 1 : 0; });
    }
    std::this_thread::sleep_for(pause);
    EXPECT_EQ(signaler.signal(value), signal_result::done);
    waiters.clear();
    EXPECT_EQ(reached, 16);
  }
}

/// Any process can wake the waiters, which only costs them time.
TEST_F(shared_page, false_wake_ups_are_harmless) {
  std::atomic<bool> done{false};
  const std::jthread hostile([&] {
    while (!done) {
      reader().wake();
    }
  });
  EXPECT_EQ(wait(reader(), 1, clock::now() + 50ms), wait_result::timed_out);
  done = true;
}

}  // namespace
}  // namespace gpushm::sync
