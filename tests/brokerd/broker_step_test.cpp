// SPDX-License-Identifier: Apache-2.0
// gpushm-brokerd killed by SIGKILL between two of its instructions, while it handles one request of
// each kind: its thread runs to one of its system calls, and from there is stepped to an
// instruction. The request is carried out once, and the client sees nothing. The system calls are
// spread evenly over the request, the instructions are random. GPUSHM_BROKER_STEPS: how many kills
// for each kind.
#include <gtest/gtest.h>
#include <sys/ptrace.h>

#include <chrono>
#include <cstdint>
#include <future>
#include <optional>
#include <random>
#include <string>

#include "base/files/sanitizers.hpp"
#include "gpushm/gpushm.hpp"
#include "tests/brokerd/broker_scenarios.hpp"
#include "tests/brokerd/stepped_thread.hpp"
#include "tests/support/broker_process/holdings.hpp"
#include "tests/support/brokerd/brokerd.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/environment.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace {

using namespace std::chrono_literals;
using gpushm_testing::eventually;
using gpushm_tests::scenario;
using gpushm_tests::scenario_of;
using gpushm_tests::stepped_thread;
using gpushm_tests::thread_named;
using gpushm_tests::world;

class stepped_broker : public testing::TestWithParam<scenario> {
 protected:
  void SetUp() override {
    EXPECT_TRUE(eventually(
        [&] {
          try {
            return gpushm::client::connect({.socket_path = socket_}).list().empty();
          } catch (const gpushm::error&) {
            return false;
          }
        },
        20s));
  }
  void TearDown() override {
    if (HasFailure()) {
      std::printf("%s\n", broker_.keeper().output().all_output().c_str());
    }
  }

  struct point {
    std::uint64_t stops = UINT64_MAX;  ///< at system calls; the largest: it is not killed
    std::uint64_t steps = 0;           ///< instructions after that
  };
  /// Returns the number of stops until the request was answered, or until it was killed.
  std::uint64_t run(const char* thread_name, const point& point) {
    world world;
    world.socket = socket_;
    world.exporter = world.connect();
    world.importer = world.connect();
    GetParam().before(world);
    const pid_t process = broker_.pid();
    std::optional<stepped_thread> thread;
    thread.emplace(thread_named(process, thread_name));
    if (!thread->is_attached()) {
      ADD_FAILURE() << "cannot trace the thread " << thread_name;
      return 0;
    }
    auto request = std::async(std::launch::async, [&] { GetParam().traced(world); });
    const auto ended = [&] { return request.wait_for(0s) == std::future_status::ready; };
    const std::uint64_t stops = thread->run(PTRACE_SYSCALL, point.stops, ended);
    if (stops == point.stops && thread->run(PTRACE_SINGLESTEP, point.steps, ended) == point.steps) {
      thread->kill(process);
      ++killed_;
    }
    thread.reset();
    EXPECT_EQ(request.wait_for(30s), std::future_status::ready);
    request.get();
    GetParam().after(world);
    return stops;
  }

  /// Kills at instructions of this thread that are spread over the request.
  void kill_everywhere(const char* thread_name) {
    const std::uint64_t whole = run(thread_name, {});
    ASSERT_GT(whole, 2U);
    // Of the domain without clients.
    const auto is_idle = [&] {
      return settled_descriptors()["anon_inode:[pidfd]"] == keepers_pidfds;
    };
    ASSERT_TRUE(eventually(is_idle, 20s));
    const auto kept = settled_descriptors();
    const int kills = number_of_kills();
    for (int i = 0; i < kills && !HasFailure(); ++i) {
      const point at{whole * static_cast<std::uint64_t>(i) / static_cast<std::uint64_t>(kills),
                     random_() % (std::uint64_t{1} << random_() % most_bits)};
      run(thread_name, at);
      EXPECT_TRUE(eventually([&] { return is_empty(); }, 20s)) << "segments are left";
      if (HasFailure()) {
        FAIL() << thread_name << " killed " << at.steps << " instructions after stop " << at.stops
               << " of " << whole;
      }
    }
    EXPECT_TRUE(eventually([&] { return settled_descriptors() == kept; }, 20s))
        << gpushm_testing::to_text(settled_descriptors())
        << " in the keeper, before: " << gpushm_testing::to_text(kept);
    EXPECT_GT(killed_, 0);
    std::printf("%s, %s: %llu stops, killed %d times\n",
                GetParam().name,
                thread_name,
                static_cast<unsigned long long>(whole),
                killed_);
  }

 private:
  /// Of its guard, and of its program.
  static constexpr std::size_t keepers_pidfds = 2;

  [[nodiscard]] static int number_of_kills() {
    return gpushm_testing::number_from_environment("GPUSHM_BROKER_STEPS",
                                                   gpushm::base::under_sanitizer ? 2 : 6);
  }
  [[nodiscard]] bool is_empty() const {
    return gpushm::client::connect({.socket_path = socket_}).list().empty();
  }
  [[nodiscard]] gpushm_testing::descriptor_counts settled_descriptors() {
    return gpushm_tests::settled_holdings_of({broker_.keeper().pid()}).descriptors;
  }

  /// An unoptimised broker executes up to 2^15 instructions between two system calls.
  static constexpr std::uint64_t most_bits = 16;

  int killed_ = 0;
  std::minstd_rand random_{1};
  gpushm_testing::temp_dir directory_{0755};
  const std::string run_dir_ = directory_ / "run";
  const std::string socket_ = run_dir_ + "/d/default/socket";
  gpushm_testing::brokerd broker_{run_dir_, {"--domain", "default"}};
};

TEST_P(stepped_broker, handles_each_request_once) {
  kill_everywhere("gpushm-broker");
}

INSTANTIATE_TEST_SUITE_P(of,
                         stepped_broker,
                         testing::ValuesIn(gpushm_tests::scenarios()),
                         [](const auto& chosen) { return std::string(chosen.param.name); });

/// Packets with descriptors are read by another thread.
class stepped_receiver : public stepped_broker {};

TEST_P(stepped_receiver, receives_descriptors_once) {
  kill_everywhere("gpushm-receiver");
}

INSTANTIATE_TEST_SUITE_P(of,
                         stepped_receiver,
                         testing::Values(scenario_of("connect"),
                                         scenario_of("create"),
                                         scenario_of("create_in_batches")),
                         [](const auto& chosen) { return std::string(chosen.param.name); });

}  // namespace
