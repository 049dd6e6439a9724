// SPDX-License-Identifier: Apache-2.0
// gpushm-brokerd that hangs: its keeper replaces it, and nothing is lost.
#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <optional>
#include <string>

#include "base/process/signals.hpp"
#include "gpushm/gpushm.hpp"
#include "tests/brokerd/stepped_thread.hpp"
#include "tests/support/brokerd/brokerd.hpp"
#include "tests/support/process/child.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/patient_client.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace {

using namespace std::chrono_literals;
using gpushm_testing::child;
using gpushm_testing::eventually;

class watched_broker : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(eventually([&] { return is_serving(); }, 60s));
    created_.emplace(connect().create(
        "weights",
        {.size_bytes = 4'096, .device = "host", .lifetime = gpushm::lifetime::persistent}));
    created_->publish();
  }
  void TearDown() override {
    if (HasFailure()) {
      std::printf("%s\n", keeper_.output().all_output().c_str());
    }
  }
  [[nodiscard]] child start_keeper() const {
    gpushm_testing::make_run_directory(run_dir_);
    return child::start(
        gpushm_testing::brokerd_command(run_dir_, {"--domain", "default"}, {"--watchdog", "2"}));
  }
  /// 0: none at the moment.
  [[nodiscard]] pid_t broker() const { return gpushm_testing::program_kept_by(keeper_.pid()); }
  [[nodiscard]] gpushm::client connect() const { return gpushm_testing::patient_client(socket_); }
  [[nodiscard]] bool is_serving() const {
    try {
      static_cast<void>(connect().list());
      return true;
    } catch (const gpushm::error&) {
      return false;
    }
  }
  void expect_another_than(pid_t hung) {
    EXPECT_TRUE(eventually(
        [&] {
          const pid_t now = broker();
          return now != 0 && now != hung;
        },
        60s))
        << "the broker that hangs was not replaced";
    EXPECT_EQ(connect().open("weights").size_bytes(), 4'096U);
    EXPECT_EQ(created_->state(), gpushm::segment_state::live);
  }

  gpushm_testing::temp_dir directory_{0755};
  const std::string run_dir_ = directory_ / "run";
  const std::string socket_ = run_dir_ + "/d/default/socket";
  child keeper_ = start_keeper();
  std::optional<gpushm::segment> created_;
};

TEST_F(watched_broker, is_replaced_when_it_is_stopped) {
  pid_t hung = 0;
  ASSERT_TRUE(eventually([&] { return (hung = broker()) != 0; }, 60s));
  gpushm::base::signal_process(hung, SIGSTOP);
  expect_another_than(hung);
}

/// The process lives on, and its main thread reports.
TEST_F(watched_broker, is_replaced_when_the_event_loop_of_a_domain_hangs) {
  pid_t hung = 0;
  pid_t thread = 0;
  std::optional<gpushm_tests::stepped_thread> stopped;
  // Again if it is replaced at this moment, as can happen on a machine with too much to do.
  const auto attach = [&] {
    hung = broker();
    thread = hung == 0 ? 0 : gpushm_tests::thread_named(hung, "gpushm-broker");
    return thread != 0 && stopped.emplace(thread).is_attached();
  };
  ASSERT_TRUE(eventually(attach, 60s)) << "cannot trace the domain's thread";
  int status = 0;
  const auto has_ended = [&] {
    return ::waitpid(thread, &status, __WALL | WNOHANG) == thread && !WIFSTOPPED(status);
  };
  ASSERT_TRUE(eventually(has_ended, 60s)) << "the broker that hangs was not killed";
  expect_another_than(hung);
}

}  // namespace
