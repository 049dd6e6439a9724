// SPDX-License-Identifier: Apache-2.0
#include "broker/session/fence_watch.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <memory>
#include <vector>

#include "base/process/signals.hpp"
#include "tests/support/process/deadline.hpp"

namespace gpushm::broker_detail {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// A process, and a pipe that this test closes.
class fenced_process : public testing::Test {
 protected:
  fenced_process() : pid_(::fork()) {
    if (pid_ == 0) {
      ::alarm(60);
      ::pause();
      ::_exit(0);
    }
    std::array<int, 2> ends{-1, -1};
    EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
    reader_ = base::unique_fd(ends[0]);
    writer_ = base::unique_fd(ends[1]);
  }
  ~fenced_process() override {
    end_process();
    ::waitpid(pid_, nullptr, 0);
  }
  void end_process() const { gpushm::base::signal_process(pid_, SIGKILL); }

  void watch(fence kind, milliseconds delay) {
    base::guarded_fd pidfd = base::unique_fd(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
    watch_ = std::make_unique<fence_watch>(
        io_, kind, end_watch(io_, std::move(pidfd)), end_watch(io_, std::move(reader_)), delay);
    watch_->wait([this] { ++reached_; }, [this](fence_wait wait) { waits_.push_back(wait); });
  }
  void run_for(milliseconds time) {
    io_.restart();
    io_.run_for(time);
  }
  template <typename Condition>
  bool becomes(Condition&& condition) {
    return gpushm_testing::eventually(
        [&] {
          run_for(milliseconds(5));
          return condition();
        },
        seconds(10));
  }

  pid_t pid_;
  base::unique_fd reader_;
  base::unique_fd writer_;
  asio::io_context io_{1};
  std::unique_ptr<fence_watch> watch_;
  int reached_ = 0;
  std::vector<fence_wait> waits_;
};

TEST_F(fenced_process, reached_when_process_and_life_pipe_have_ended) {
  watch(fence::proven, hours(1));
  run_for(milliseconds(20));
  EXPECT_EQ(reached_, 0);
  writer_.reset();
  end_process();
  EXPECT_TRUE(becomes([&] { return reached_ != 0; }));
  run_for(milliseconds(20));
  EXPECT_EQ(reached_, 1);
}

TEST_F(fenced_process, waits_for_a_descendant_with_the_life_pipe) {
  watch(fence::unproven, milliseconds(20));
  end_process();
  EXPECT_TRUE(becomes([&] { return !waits_.empty(); }));
  EXPECT_EQ(waits_, std::vector{fence_wait::descendant});
  run_for(milliseconds(100));  // the delay does not apply here
  EXPECT_EQ(reached_, 0);
  writer_.reset();
  EXPECT_TRUE(becomes([&] { return reached_ != 0; }));
}

TEST_F(fenced_process, unproven_fence_waits_for_the_delay_too) {
  watch(fence::unproven, milliseconds(200));
  const auto begin = std::chrono::steady_clock::now();
  writer_.reset();
  end_process();
  EXPECT_TRUE(becomes([&] { return !waits_.empty() && waits_.back() == fence_wait::delay; }));
  EXPECT_TRUE(becomes([&] { return reached_ != 0; }));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(200));
}

TEST_F(fenced_process, process_after_exec_waits_for_the_delay) {
  watch(fence::proven, milliseconds(200));
  const auto begin = std::chrono::steady_clock::now();
  writer_.reset();
  EXPECT_TRUE(becomes([&] { return !waits_.empty(); }));
  EXPECT_EQ(waits_, std::vector{fence_wait::delay});
  EXPECT_TRUE(becomes([&] { return reached_ != 0; }));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(200));
  end_process();
  run_for(milliseconds(50));
  EXPECT_EQ(reached_, 1);
}

TEST_F(fenced_process, end_within_the_delay_reaches_the_fence) {
  watch(fence::proven, hours(1));
  writer_.reset();
  EXPECT_TRUE(becomes([&] { return !waits_.empty(); }));
  EXPECT_EQ(reached_, 0);
  end_process();
  EXPECT_TRUE(becomes([&] { return reached_ != 0; }));
}

TEST_F(fenced_process, without_a_fence_only_the_delay_applies) {
  watch(fence::none, milliseconds(100));
  end_process();
  writer_.reset();
  run_for(milliseconds(20));
  EXPECT_EQ(reached_, 0);
  EXPECT_EQ(waits_, std::vector{fence_wait::delay});
  EXPECT_TRUE(becomes([&] { return reached_ != 0; }));
}

TEST_F(fenced_process, destroyed_watch_reports_nothing) {
  watch(fence::proven, milliseconds(1));
  watch_.reset();
  writer_.reset();
  end_process();
  run_for(milliseconds(50));
  EXPECT_EQ(reached_, 0);
  EXPECT_TRUE(waits_.empty());
}

}  // namespace
}  // namespace gpushm::broker_detail
