// SPDX-License-Identifier: Apache-2.0
// gpushm-brokerd is killed by SIGKILL between two of its instructions while it starts: after the
// loss of a broker and its keeper, whose segments members hand back, or as the successor of a
// broker that was killed. The next one has all segments, and gives no generation out again. The
// system calls of the start are spread evenly over the kills, the instructions behind them are
// random. GPUSHM_BROKER_STEPS: how many kills.
#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <thread>

#include "base/files/sanitizers.hpp"
#include "base/process/signals.hpp"
#include "gpushm/gpushm.hpp"
#include "tests/brokerd/stepped_thread.hpp"
#include "tests/support/brokerd/brokerd.hpp"
#include "tests/support/process/child.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/environment.hpp"
#include "tests/support/process/harness_error.hpp"
#include "tests/support/process/patient_client.hpp"
#include "tests/support/process/proc_counters.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace {

using namespace std::chrono_literals;
using gpushm_testing::child;
using gpushm_testing::eventually;
using gpushm_tests::stepped_thread;

class killed_at_start : public testing::Test {
 protected:
  void TearDown() override {
    if (HasFailure() && keeper_) {
      std::printf("%s\n", keeper_->output().all_output().c_str());
    }
  }
  [[nodiscard]] gpushm::client connect() const { return gpushm_testing::patient_client(socket_); }
  /// Each broker stops before its first instruction.
  void start_keeper() {
    gpushm_testing::make_run_directory(run_dir_);
    auto command = gpushm_testing::brokerd_command(run_dir_, {"--domain", "default"});
    const auto program = std::find(command.argv.begin(), command.argv.end(), "--") + 1;
    command.argv.insert(program, {"/bin/sh", "-c", R"(kill -STOP $$; exec "$@")", "sh"});
    keeper_.emplace(child::start(command));
  }
  void lose() {
    gpushm::base::signal_group(keeper_->pid(), SIGKILL);
    keeper_->wait_exit(20s);
    keeper_.reset();
    std::filesystem::remove(last_socket_);
  }
  [[nodiscard]] pid_t stopped_broker() const {
    const pid_t found = gpushm_testing::program_kept_by(keeper_->pid());
    return gpushm_testing::state_in("/proc/" + std::to_string(found)) == 'T' ? found : 0;
  }
  /// Lets brokers start while it exists.
  [[nodiscard]] std::jthread continue_brokers() const {
    return std::jthread([this](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        if (const pid_t found = stopped_broker(); found != 0) {
          gpushm::base::signal_process(found, SIGCONT);
        }
        std::this_thread::sleep_for(2ms);
      }
    });
  }
  /// The next one, which has stopped before its first instruction.
  [[nodiscard]] pid_t next_broker() const {
    pid_t broker = 0;
    if (!eventually([&] { return (broker = stopped_broker()) != 0; }, 20s)) {
      throw gpushm_testing::harness_error("no broker is started");
    }
    return broker;
  }
  /// Kills a starting broker after a number of system calls and instructions. Returns how many
  /// stops at system calls there were until it served or was killed.
  std::uint64_t kill_while_it_starts(std::uint64_t stops, std::uint64_t steps) {
    const pid_t broker = next_broker();
    stepped_thread thread(broker);
    if (!thread.is_attached()) {
      throw gpushm_testing::harness_error("the broker cannot be traced");
    }
    gpushm::base::signal_process(broker, SIGCONT);
    const auto serves = [&] { return std::filesystem::exists(last_socket_); };
    const std::uint64_t done = thread.run(PTRACE_SYSCALL, stops, serves);
    if (done == stops && thread.run(PTRACE_SINGLESTEP, steps, serves) == steps) {
      thread.kill(broker);
      ++kills_;
    }
    return done;
  }
#if defined(__x86_64__)
  /// Of the next broker that starts: one of the calls that fail if a resource is short. Lets the
  /// broker do what it wants then. Returns how many such calls there were until it served.
  std::uint64_t fail_one_call_while_it_starts(std::uint64_t wanted) {
    const pid_t broker = next_broker();
    stepped_thread thread(broker);
    if (!thread.is_attached()) {
      throw gpushm_testing::harness_error("the broker cannot be traced");
    }
    gpushm::base::signal_process(broker, SIGCONT);
    const auto serves = [&] { return std::filesystem::exists(last_socket_); };
    std::uint64_t calls = 0;
    bool has_begun = false;  // before, the program is loaded
    while (thread.run(PTRACE_SYSCALL, 1, serves) == 1) {
      const auto number = thread.entered_call();
      has_begun = has_begun || number == SYS_prctl;
      const int error = has_begun && number ? error_without_resources(*number) : 0;
      if (error != 0 && calls++ == wanted) {
        failures_ += thread.fail_call(error) ? 1 : 0;
        break;
      }
    }
    return calls;
  }
  /// 0: it does not fail then.
  static int error_without_resources(std::uint64_t call) {
    switch (call) {
      case SYS_clone:
      case SYS_clone3:
        return EAGAIN;
      case SYS_mmap:
        return ENOMEM;
      case SYS_openat:
      case SYS_socket:
      case SYS_eventfd2:
      case SYS_epoll_create1:
      case SYS_timerfd_create:
      case SYS_memfd_create:
      case SYS_pipe2:
      case SYS_socketpair:
      case SYS_pidfd_open:
        return EMFILE;
      default:
        return 0;
    }
  }
#endif
  [[nodiscard]] bool has(const std::string& name, gpushm::generation generation) const {
    auto looks = connect();
    return eventually(
        [&] {
          const auto all = looks.list(name);
          return all.size() == 1 && all.front().generation == generation && all.front().published;
        },
        10s);
  }
  static gpushm::segment make(gpushm::client& client, const std::string& name) {
    gpushm::segment result = client.create(
        name, {.size_bytes = 4096, .device = "host", .lifetime = gpushm::lifetime::persistent});
    result.publish();
    return result;
  }
  /// Kills many brokers while they start. `next`: begins a start.
  void kill_many(const std::function<void()>& next, bool is_continued) {
    const auto wanted = gpushm_testing::number_from_environment<std::uint64_t>(
        "GPUSHM_BROKER_STEPS", gpushm::base::under_sanitizer ? 3 : 12);
    constexpr std::uint64_t most_bits = 14;  // of instructions between two system calls
    std::minstd_rand random(std::random_device{}());
    start_keeper();
    auto going = continue_brokers();
    gpushm::client member = connect();
    const gpushm::segment old = make(member, "old");
    gpushm::segment last = make(member, "last");  // of the start before
    going = {};
    next();
    const std::uint64_t whole = kill_while_it_starts(UINT64_MAX, 0);
    ASSERT_GT(whole, 100U);
    gpushm::epoch epoch = connect().broker().epoch;
    for (std::uint64_t i = 0; i != wanted && !HasFailure(); ++i) {
      next();
      const std::uint64_t stops = whole * i / wanted;
      const std::uint64_t steps = random() % (std::uint64_t{1} << random() % most_bits);
      kill_while_it_starts(stops, steps);
      going = continue_brokers();
      EXPECT_TRUE(has("old", old.generation()));
      EXPECT_TRUE(has("last", last.generation()));
      EXPECT_EQ(connect().broker().epoch == epoch, is_continued);
      epoch = connect().broker().epoch;
      member.remove("last");
      gpushm::segment another = make(member, "last");
      EXPECT_GT(another.generation(), last.generation()) << "given out again";
      last = std::move(another);
      going = {};
      ASSERT_FALSE(HasFailure()) << "killed " << steps << " instructions after stop " << stops
                                 << " of " << whole;
    }
    EXPECT_GT(kills_, 0);
    std::printf("%llu stops, killed %d times\n", static_cast<unsigned long long>(whole), kills_);
  }

  gpushm_testing::temp_dir directory_{0755};
  const std::string run_dir_ = directory_ / "run";
  const std::string socket_ = run_dir_ + "/d/default/socket";
  const std::string last_socket_ = run_dir_ + "/private/socket";  ///< that a start makes
  std::optional<child> keeper_;
  int kills_ = 0;
  int failures_ = 0;
};

TEST_F(killed_at_start, a_broker_without_predecessor_loses_nothing) {
  kill_many(
      [this] {
        lose();
        start_keeper();
      },
      false);
}

TEST_F(killed_at_start, a_successor_loses_nothing) {
  kill_many(
      [this] {
        gpushm::base::signal_process(gpushm_testing::program_kept_by(keeper_->pid()), SIGKILL);
        std::filesystem::remove(last_socket_);
      },
      true);
}

// It starts once it has what it needs: a lack ends no domain.
TEST_F(killed_at_start, a_successor_that_lacks_resources_loses_nothing) {
#if defined(__x86_64__)
  const auto wanted = gpushm_testing::number_from_environment<std::uint64_t>(
      "GPUSHM_BROKER_ERRORS", gpushm::base::under_sanitizer ? 3 : 12);
  start_keeper();
  auto going = continue_brokers();
  gpushm::client member = connect();
  const gpushm::segment kept = make(member, "kept");
  const gpushm::epoch epoch = connect().broker().epoch;
  going = {};
  const auto next = [this] {
    gpushm::base::signal_process(gpushm_testing::program_kept_by(keeper_->pid()), SIGKILL);
    std::filesystem::remove(last_socket_);
  };
  next();
  const std::uint64_t whole = fail_one_call_while_it_starts(UINT64_MAX);
  ASSERT_GT(whole, 20U);
  for (std::uint64_t i = 0; i != wanted && !HasFailure(); ++i) {
    next();
    fail_one_call_while_it_starts(whole * i / wanted);
    going = continue_brokers();
    EXPECT_TRUE(has("kept", kept.generation()));
    EXPECT_EQ(connect().broker().epoch, epoch) << "the domain has begun again";
    going = {};
    ASSERT_FALSE(HasFailure()) << "call " << whole * i / wanted << " of " << whole;
  }
  EXPECT_GT(failures_, 0);
#else
  GTEST_SKIP() << "system calls are replaced on x86-64 only";
#endif
}

}  // namespace
