// SPDX-License-Identifier: Apache-2.0
#include "broker/session/end_watch.hpp"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <asio/posix/stream_descriptor.hpp>
#include <chrono>
#include <csignal>
#include <optional>
#include <string>

#include "base/process/signals.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/proc_counters.hpp"

namespace gpushm::broker_detail {
namespace {

using std::chrono::seconds;

/// A process that does nothing.
class idle_process {
 public:
  idle_process() : pid_(::fork()) {
    if (pid_ == 0) {
      ::alarm(60);
      ::pause();
      ::_exit(0);
    }
  }
  idle_process(const idle_process&) = delete;
  idle_process& operator=(const idle_process&) = delete;
  ~idle_process() {
    end();
    ::waitpid(pid_, nullptr, 0);
  }
  void end() const { gpushm::base::signal_process(pid_, SIGKILL); }
  [[nodiscard]] base::guarded_fd pidfd() const {
    return base::unique_fd(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  }

 private:
  pid_t pid_;
};

/// A file that is readable immediately.
struct ready_file {
  explicit ready_file(asio::io_context& io) : events(io, file.get()) {}
  ~ready_file() { close(); }
  ready_file(const ready_file&) = delete;
  ready_file& operator=(const ready_file&) = delete;
  void close() {
    if (events.is_open()) {
      events.release();
    }
  }

  base::unique_fd file{::eventfd(1, EFD_CLOEXEC)};
  asio::posix::stream_descriptor events;
};

int pidfds() {
  int count = 0;
  for (const auto& [kind, number] : gpushm_testing::count_descriptors(::getpid())) {
    count += kind.find("pidfd") != std::string::npos ? static_cast<int>(number) : 0;
  }
  return count;
}

TEST(end_watch, reports_the_end_of_the_process) {
  asio::io_context io(1);
  const idle_process process;
  int ended = 0;
  end_watch watch(io, process.pidfd());
  watch.wait([&] { ++ended; });
  io.poll();
  EXPECT_EQ(ended, 0);
  process.end();
  io.run_for(gpushm_testing::scaled_timeout(seconds(5)));
  EXPECT_EQ(ended, 1);
}

TEST(end_watch, reports_nothing_after_stop) {
  asio::io_context io(1);
  const idle_process process;
  end_watch watch(io, process.pidfd());
  watch.wait([] { ADD_FAILURE(); });
  ASSERT_EQ(pidfds(), 1);
  process.end();
  watch.stop();
  watch.stop();
  io.run_for(gpushm_testing::scaled_timeout(seconds(5)));
  EXPECT_EQ(pidfds(), 0);
}

TEST(end_watch, empty_watch_reports_nothing) {
  asio::io_context io(1);
  end_watch none;
  none.wait([] { ADD_FAILURE(); });
  end_watch empty(io, {});
  empty.wait([] { ADD_FAILURE(); });
  io.run_for(std::chrono::milliseconds(20));
  none.stop();
}

/// Two descriptors are ready in the same iteration of the event loop. The handler of the first
/// closes the other, and a watch reuses its slot in the loop while its event is still queued, as
/// when a connection ends and another is accepted in one turn.
TEST(end_watch, ignores_the_event_of_a_released_descriptor) {
  asio::io_context io(1);
  const idle_process process;
  std::optional<end_watch> watch;
  int ended = 0;
  ready_file one(io);
  ready_file two(io);
  const auto replace = [&](ready_file& other) {
    other.close();
    watch.emplace(io, process.pidfd());
    watch->wait([&] { ++ended; });
  };
  constexpr auto readable = asio::posix::stream_descriptor::wait_read;
  one.events.async_wait(readable, [&](asio::error_code code) { code ? void() : replace(two); });
  two.events.async_wait(readable, [&](asio::error_code code) { code ? void() : replace(one); });
  io.poll();
  ASSERT_TRUE(watch);
  EXPECT_EQ(ended, 0) << "the process is alive";
  process.end();
  io.restart();
  io.run_for(gpushm_testing::scaled_timeout(seconds(5)));
  EXPECT_EQ(ended, 1) << "its end is still reported";
}

}  // namespace
}  // namespace gpushm::broker_detail
