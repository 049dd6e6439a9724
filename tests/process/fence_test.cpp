// SPDX-License-Identifier: Apache-2.0
// Processes whose memory changes after their connection has ended: what the broker releases, and
// when. The writers write host memory themselves, in place of a GPU that continues the work of a
// dead process.

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/process/signals.hpp"
#include "gpushm/gpushm.hpp"
#include "tests/support/broker_process/bad_input.hpp"
#include "tests/support/process/child.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/programs.hpp"

namespace gpushm_tests {
namespace {

using gpushm::errc;
using gpushm::event_kind;
using gpushm::fence_wait;
using gpushm_testing::child;
using gpushm_testing::clock;
using gpushm_testing::eventually;
using gpushm_testing::own_program;
using gpushm_testing::scaled_timeout;
using gpushm_testing::stream;
using std::chrono::milliseconds;
using std::chrono::seconds;

class fence : public bad_input {
 protected:
  static constexpr milliseconds delay{1'500};
  fence() : bad_input({"fence_delay_ms=" + std::to_string(delay.count())}) {}

  /// Starts a writer that has published its segment and closes its connection on "go".
  child start(const std::string& how,
              milliseconds time = milliseconds(0),
              const std::vector<std::string>& wrapper = {}) {
    gpushm_testing::spawn_options options;
    options.argv = wrapper;
    for (const std::string& word : {own_program("fence_writer"),
                                    broker_.socket_path(),
                                    std::string("kv"),
                                    how,
                                    std::to_string(time.count())}) {
      options.argv.push_back(word);
    }
    child writer = child::start(options);
    writer.wait_for_line("^ready$", seconds(20));
    return writer;
  }
  static std::uint64_t value_of(const gpushm::segment& segment) {
    std::uint64_t value = 0;
    std::memcpy(&value, segment.data(), sizeof value);
    return value;
  }
  static bool changes(const gpushm::segment& segment, milliseconds within) {
    const auto before = value_of(segment);
    const auto end = clock::now() + within;
    while (clock::now() < end) {
      if (value_of(segment) != before) {
        return true;
      }
      ::usleep(500);
    }
    return false;
  }
  [[nodiscard]] bool is_ending() {
    return eventually([&] { return bystander_.stat("kv").ending != 0; }, seconds(10));
  }
  /// Returns the next event of that kind; nullopt after `timeout`.
  static std::optional<gpushm::event> next_of(gpushm::subscription& subscription,
                                              event_kind kind,
                                              milliseconds timeout) {
    const auto end = clock::now() + timeout;
    while (clock::now() < end) {
      auto event = subscription.next(milliseconds(gpushm_testing::milliseconds_until(end)));
      if (event && event->kind == kind) {
        return event;
      }
    }
    return std::nullopt;
  }
};

TEST_F(fence, memory_does_not_change_after_a_reported_death) {
  auto events = bystander_.subscribe();
  auto writer = start("killed");
  const auto reader = connect().open("kv");
  writer.write("go\n");
  ASSERT_TRUE(is_ending());
  EXPECT_TRUE(changes(reader, seconds(5)));
  EXPECT_FALSE(next_of(events, event_kind::peer_died, milliseconds(100)));
  writer.kill(SIGKILL);
  ASSERT_TRUE(next_of(events, event_kind::peer_died, scaled_timeout(seconds(10))));
  EXPECT_FALSE(changes(reader, milliseconds(200)));
}

TEST_F(fence, holds_across_pid_namespaces) {
  if (::geteuid() != 0) {
    GTEST_SKIP() << "a PID namespace needs root";
  }
  auto events = bystander_.subscribe();
  auto writer = start(
      "killed", milliseconds(0), {"unshare", "--pid", "--fork", "--kill-child", "--mount-proc"});
  const auto reader = connect().open("kv");
  writer.write("go\n");
  ASSERT_TRUE(is_ending());
  EXPECT_FALSE(next_of(events, event_kind::peer_died, milliseconds(100)));
  writer.kill(SIGKILL);
  ASSERT_TRUE(next_of(events, event_kind::peer_died, scaled_timeout(seconds(10))));
  EXPECT_FALSE(changes(reader, milliseconds(200)));
}

TEST_F(fence, names_opens_and_memory_wait_for_the_end_of_the_writer) {
  auto writer = start("killed");
  writer.write("go\n");
  ASSERT_TRUE(is_ending());
  const auto shown = bystander_.stat("kv");
  EXPECT_EQ(shown.ending, 1U);
  EXPECT_EQ(shown.ending_pid, writer.pid());
  EXPECT_EQ(shown.ending_waits, fence_wait::process);
  EXPECT_FALSE(shown.creator_alive);
  EXPECT_EQ(code_of([&] { (void)bystander_.open("kv"); }), errc::writer_ending);
  EXPECT_EQ(code_of([&] { (void)bystander_.open("kv", {.timeout = milliseconds(100)}); }),
            errc::writer_ending);
  EXPECT_FALSE(bystander_.try_open("kv"));
  auto client_with_timeout = gpushm::client::connect(
      {.socket_path = broker_.socket_path(), .request_limit = milliseconds(200)});
  EXPECT_EQ(
      code_of([&] { (void)client_with_timeout.create("kv", {.size_bytes = 8, .device = "host"}); }),
      errc::writer_ending);
  const std::jthread killer([&] {
    std::this_thread::sleep_for(milliseconds(100));
    writer.kill(SIGKILL);
  });
  const auto created = bystander_.create("kv", {.size_bytes = 8, .device = "host"});
  EXPECT_EQ(bystander_.stat("kv").generation, created.generation());
}

TEST_F(fence, child_without_fork_handlers_is_waited_for) {
  auto events = bystander_.subscribe();
  auto writer = start("child");
  const auto reader = connect().open("kv");
  writer.write("go\n");
  const pid_t descendant =
      std::stoi(writer.wait_for_line("^child [0-9]+$", seconds(10), stream::err).substr(6));
  (void)writer.wait_exit(seconds(10));
  EXPECT_TRUE(eventually(
      [&] { return bystander_.stat("kv").ending_waits == fence_wait::descendant; }, seconds(10)));
  EXPECT_TRUE(changes(reader, seconds(5)));
  EXPECT_FALSE(next_of(events, event_kind::peer_died, milliseconds(500)));  // no delay applies here
  ASSERT_EQ(gpushm::base::signal_process(descendant, SIGKILL), 0);
  ASSERT_TRUE(next_of(events, event_kind::peer_died, seconds(10)));
  EXPECT_FALSE(changes(reader, milliseconds(100)));
}

TEST_F(fence, forked_child_is_not_waited_for) {
  auto events = bystander_.subscribe();
  auto writer = start("forked-child");
  writer.write("go\n");
  const pid_t descendant =
      std::stoi(writer.wait_for_line("^child [0-9]+$", seconds(10), stream::err).substr(6));
  EXPECT_TRUE(next_of(events, event_kind::peer_died, seconds(10)));
  EXPECT_EQ(gpushm::base::signal_process(descendant, 0), 0);  // it is alive
  EXPECT_EQ(gpushm::base::signal_process(descendant, SIGKILL), 0);
}

TEST_F(fence, executed_program_is_waited_for_until_the_delay) {
  auto events = bystander_.subscribe();
  auto writer = start("execs", seconds(30));
  const auto begin = clock::now();
  writer.write("go\n");
  EXPECT_TRUE(eventually(
      [&] {
        const auto shown = bystander_.stat("kv");
        return shown.ending != 0 && shown.ending_waits == fence_wait::delay;
      },
      seconds(10)));
  ASSERT_TRUE(next_of(events, event_kind::peer_died, scaled_timeout(seconds(10))));
  EXPECT_GE(clock::now() - begin, delay);
  EXPECT_TRUE(writer.running());
}

TEST_F(fence, unfence_ends_the_wait) {
  auto events = bystander_.subscribe();
  auto writer = start("killed");
  EXPECT_EQ(code_of([&] { bystander_.unfence("kv"); }), errc::invalid_argument);
  writer.write("go\n");
  ASSERT_TRUE(is_ending());
  bystander_.unfence("kv");
  EXPECT_TRUE(next_of(events, event_kind::unfenced, seconds(10)));
  EXPECT_TRUE(bystander_.list().empty());
}

TEST_F(fence, fifty_dead_writers_leave_nothing) {
  // TearDown compares descriptors and mappings of the broker.
  for (int round = 0; round < 50; ++round) {
    auto first = start("exits", milliseconds(1));
    first.write("go\n");
    (void)first.wait_exit(seconds(10));
    ASSERT_TRUE(eventually([&] { return bystander_.list().empty(); }, seconds(10)));
  }
}

// ---- live processes ----

class dropped : public bad_input {
 protected:
  dropped()
      : bad_input({"send_timeout_ms=" + std::to_string(scaled_timeout(milliseconds(200)).count()),
                   "fence_delay_ms=300"}) {}

  /// Stops the guest until the broker drops it because it does not read its events.
  void wait_until_dropped(child& guest) {
    ASSERT_EQ(gpushm::base::signal_process(guest.pid(), SIGSTOP), 0);
    auto producer = connect();
    EXPECT_TRUE(eventually(
        [&] {
          for (int i = 0; i < 200; ++i) {
            producer.create("noise", {.size_bytes = 1, .device = "host"}).publish();
          }
          return bystander_.stat("kept").ending != 0;
        },
        scaled_timeout(seconds(30))));
    ASSERT_EQ(gpushm::base::signal_process(guest.pid(), SIGCONT), 0);
  }
};

TEST_F(dropped, client_that_resumes_gets_its_leases_back) {
  gpushm_testing::spawn_options options;
  options.argv = {own_program("fence_guest"), broker_.socket_path()};
  auto guest = child::start(options);
  guest.wait_for_line("^ready$", seconds(20));
  const auto generation = bystander_.stat("kept").generation;
  const auto others = connect();
  wait_until_dropped(guest);
  EXPECT_EQ(code_of([&] { (void)bystander_.open("kept"); }), errc::writer_ending);
  guest.write("again\n");
  guest.wait_for_line("^resumed$", seconds(20));
  const auto shown = bystander_.stat("kept");
  EXPECT_EQ(shown.generation, generation);
  EXPECT_EQ(shown.ending, 0U);
  EXPECT_TRUE(shown.creator_alive);
  EXPECT_EQ(bystander_.open("kept").generation(), generation);
  EXPECT_FALSE(code_of([&] { (void)bystander_.stat("published later"); }));
  guest.write("release\n");
  guest.wait_for_line("^released$", seconds(20));
  EXPECT_TRUE(eventually([&] { return bystander_.list().empty(); }, seconds(10)));
}

}  // namespace
}  // namespace gpushm_tests
