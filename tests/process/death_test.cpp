// SPDX-License-Identifier: Apache-2.0
// Death at every step: a victim is killed at its k-th system call, for every k of a
// create-publish-open-release round; nothing is left after a second, and other processes continue.

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/files/sanitizers.hpp"
#include "base/process/signals.hpp"
#include "gpushm/gpushm.hpp"
#include "tests/support/broker_process/broker_process.hpp"
#include "tests/support/broker_process/holdings.hpp"
#include "tests/support/broker_process/round.hpp"
#include "tests/support/process/child.hpp"
#include "tests/support/process/environment.hpp"
#include "tests/support/process/harness_error.hpp"
#include "tests/support/process/programs.hpp"
#include "tests/support/process/temp_dir.hpp"
#include "tests/support/ptrace/traced_process.hpp"

namespace gpushm_tests {
namespace {

using gpushm_testing::child;
using gpushm_testing::eventually;
using gpushm_testing::exit_status_of;
using gpushm_testing::exited;
using gpushm_testing::own_program;
using gpushm_testing::process_is_alive;
using gpushm_testing::scaled_timeout;
using gpushm_testing::spawn_options;
using gpushm_testing::stream;
using gpushm_testing::temp_dir;
using gpushm_testing::trace_result;
using gpushm_testing::traced_process;
using std::chrono::seconds;

/// Upper bound of the calls of a round; more would mean that the window never ends.
constexpr std::uint64_t too_many_calls = 5'000;

/// Victims are killed at every third call, another third in each run; under a sanitizer, where
/// processes take 10 times as long to start and the sanitizer adds calls, at every eleventh.
std::uint64_t step_between_deaths() {
  return gpushm_testing::number_from_environment<std::uint64_t>(
      "GPUSHM_STEP_BETWEEN_KILLS", gpushm::base::under_sanitizer ? 11 : 3);
}
std::uint64_t first_death() {
  return 1 + std::random_device()() % step_between_deaths();
}

const std::string name = "death/segment";

bool holds_pattern(const gpushm::segment& segment) {
  std::vector<std::byte> bytes(segment.size_bytes());
  segment.read(0, bytes);
  return std::all_of(
      bytes.begin(), bytes.end(), [](std::byte value) { return value == round_pattern; });
}

bool printed(traced_process& victim, const std::string& word) {
  const auto& text = victim.output().text(stream::out);
  return text.find(word + "\n") != std::string::npos;
}

/// The broker and this process's client survive all victims.
class death_of_client : public ::testing::Test {
 protected:
  [[nodiscard]] const std::string& socket() const { return broker_.socket_path(); }
  [[nodiscard]] std::vector<pid_t> survivors() const { return {broker_.pid(), ::getpid()}; }

  /// Runs victims, each killed one call later than the previous one, until one completes its round.
  /// `check` runs after each victim, `prepare` before it.
  void kill_at_every_call(const std::vector<std::string>& arguments,
                          const std::function<void()>& prepare,
                          const std::function<void(traced_process&)>& check) {
    std::uint64_t k = first_death();
    for (; k < too_many_calls; k += step_between_deaths()) {
      prepare();
      spawn_options options;
      options.argv = {own_program("death_victim")};
      options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
      traced_process victim(options, k);
      const trace_result result = victim.wait_end(seconds(30));
      SCOPED_TRACE("killed at call " + std::to_string(k) + ", " + result.fatal_call +
                   (result.fatal_in_main ? " of the main thread" : " of another thread"));
      ASSERT_TRUE(result.began) << victim.output().all_output();
      if (!result.killed) {
        ASSERT_EQ(exit_status_of(result.wait_status), exited(0)) << victim.output().all_output();
      }
      check(victim);
      if (HasFatalFailure() || HasNonfatalFailure()) {
        return;
      }
      if (!result.killed) {
        break;
      }
    }
    ASSERT_LT(k, too_many_calls);
    EXPECT_GT(k, 20U) << "a round cannot have so few calls: the marks are wrong";
    RecordProperty("calls", static_cast<int>(k - 1));
  }

  /// True once no segment is listed: before a fence without proof would end.
  [[nodiscard]] bool nothing_listed() {
    return eventually([&] { return client_.list().empty(); }, seconds(4));
  }

  temp_dir directory_;
  broker_process broker_{directory_ / "socket"};
  gpushm::client client_ = gpushm::client::connect({.socket_path = broker_.socket_path()});
};

TEST_F(death_of_client, dead_producer_of_a_leased_segment_leaves_nothing) {
  const auto before = settled_holdings_of(survivors());
  kill_at_every_call(
      {"produce", socket(), name, "leased"},
      [] {},
      [&](traced_process&) {
        EXPECT_TRUE(nothing_listed());
        EXPECT_TRUE(back_to(before, survivors()));
      });
}

TEST_F(death_of_client, dead_process_with_shared_memory_leaves_nothing) {
  const auto before = settled_holdings_of(survivors());
  kill_at_every_call(
      {"share", socket(), name},
      [] {},
      [&](traced_process&) {
        EXPECT_TRUE(nothing_listed());
        EXPECT_TRUE(back_to(before, survivors()));
      });
}

TEST_F(death_of_client, published_persistent_segment_survives_its_producer) {
  const auto before = settled_holdings_of(survivors());
  std::size_t survived = 0;
  std::size_t vanished = 0;
  kill_at_every_call(
      {"produce", socket(), name, "persistent"},
      [] {},
      [&](traced_process& victim) {
        // The broker has noticed the death when the creator is reported as not alive.
        const auto settled = [&] {
          const auto listed = client_.list();
          return listed.empty() || (listed.front().published && !listed.front().creator_alive &&
                                    listed.front().leases == 0);
        };
        EXPECT_TRUE(eventually(settled, seconds(4)));
        {
          const auto opened = client_.try_open(name);
          if (printed(victim, "published")) {
            ASSERT_TRUE(opened.has_value());
          }
          if (opened) {
            ++survived;
            EXPECT_TRUE(holds_pattern(*opened));
            const auto metadata = opened->metadata();
            EXPECT_EQ(std::string(reinterpret_cast<const char*>(metadata.data()), metadata.size()),
                      round_metadata);
            client_.remove(name);
          } else {
            ++vanished;
          }
        }
        EXPECT_TRUE(nothing_listed());
        EXPECT_TRUE(back_to(before, survivors()));
      });
  EXPECT_GT(survived, 0U);
  EXPECT_GT(vanished, 0U);
}

TEST_F(death_of_client, dead_consumer_leaves_no_lease) {
  auto created = client_.create(
      name, {.size_bytes = round_size_bytes, .device = "host", .chunk_bytes = round_chunk_bytes});
  created.fill(round_pattern);
  created.publish(round_metadata);
  const auto before = settled_holdings_of(survivors());
  kill_at_every_call(
      {"consume", socket(), name},
      [] {},
      [&](traced_process&) {
        EXPECT_TRUE(eventually([&] { return client_.stat(name).leases == 1; }, seconds(4)));
        EXPECT_TRUE(back_to(before, survivors()));
        EXPECT_EQ(created.state(), gpushm::segment_state::live);
        EXPECT_TRUE(holds_pattern(created));
      });
}

TEST_F(death_of_client, consumers_keep_their_mapping_when_the_producer_dies) {
  const auto before = settled_holdings_of(survivors());
  spawn_options options;
  options.argv = {own_program("fork_parent"), socket(), name, "none"};
  {
    auto producer = child::start(options);
    producer.wait_for_line("^ready$", seconds(10), stream::err);
    auto mapping = client_.open(name, {.access = gpushm::access::read_write});
    mapping.fill(round_pattern);
    producer.kill(SIGKILL);
    (void)producer.wait_exit(seconds(5));
    EXPECT_TRUE(eventually([&] { return mapping.state() == gpushm::segment_state::exporter_gone; },
                           seconds(4)));
    EXPECT_EQ(client_.stat(name).state, gpushm::segment_state::exporter_gone)
        << "operators read another word than users";
    EXPECT_TRUE(holds_pattern(mapping));
  }
  EXPECT_TRUE(nothing_listed());
  EXPECT_TRUE(back_to(before, survivors()));
}

TEST_F(death_of_client, subscribers_get_deaths_but_not_goodbyes) {
  auto events = client_.subscribe("death/");
  const auto wait_for = [&](gpushm::event_kind kind) {
    const auto deadline = gpushm_testing::deadline_after(seconds(1));
    while (gpushm_testing::clock::now() < deadline) {
      const auto next = events.next(std::chrono::milliseconds(100));
      if (next && next->kind == kind) {
        return true;
      }
    }
    return false;
  };
  spawn_options options;
  options.argv = {own_program("fork_parent"), socket(), name, "none"};
  auto producer = child::start(options);
  producer.wait_for_line("^ready$", seconds(10), stream::err);
  EXPECT_TRUE(wait_for(gpushm::event_kind::published));
  producer.kill(SIGKILL);
  EXPECT_TRUE(wait_for(gpushm::event_kind::peer_died));

  options.argv = {own_program("death_victim"), "produce", socket(), name, "leased"};
  EXPECT_EQ(gpushm_testing::run_program(options).status, exited(0));
  EXPECT_TRUE(wait_for(gpushm::event_kind::published));
  EXPECT_FALSE(wait_for(gpushm::event_kind::peer_died));
}

class death_of_parent : public death_of_client,
                        public ::testing::WithParamInterface<const char*> {};

TEST_P(death_of_parent, is_reported_despite_a_live_child) {
  const auto before = settled_holdings_of(survivors());
  spawn_options options;
  options.argv = {own_program("fork_parent"), socket(), name, GetParam()};
  auto parent = child::start(options);
  parent.wait_for_line("^ready$", seconds(10), stream::err);
  const pid_t survivor = std::stoi(parent.wait_for_line("^child [0-9]+$", seconds(10)).substr(6));
  parent.wait_for_line("^child waits$", seconds(10));
  EXPECT_EQ(client_.stat(name).leases, 1U);

  parent.kill(SIGKILL);
  (void)parent.wait_exit(seconds(5));
  ASSERT_TRUE(process_is_alive(survivor));
  if (GetParam() == std::string("clone")) {
    // The child may have driver files: the broker waits for it.
    EXPECT_TRUE(eventually(
        [&] {
          const auto shown = client_.stat(name);
          return shown.ending == 1 && shown.ending_waits == gpushm::fence_wait::descendant;
        },
        seconds(20)));
    parent.close_stdin();
    EXPECT_TRUE(nothing_listed());
    EXPECT_TRUE(back_to(before, survivors()));
    return;
  }
  EXPECT_TRUE(nothing_listed());
  EXPECT_TRUE(back_to(before, survivors()));
  ASSERT_TRUE(process_is_alive(survivor)) << "the child must have been alive throughout";

  parent.close_stdin();
  EXPECT_TRUE(eventually([&] { return !process_is_alive(survivor); }, seconds(20)));
}

INSTANTIATE_TEST_SUITE_P(,
                         death_of_parent,
                         ::testing::Values("fork", "clone"),
                         [](const auto& how) { return std::string(how.param); });

TEST_F(death_of_client, forked_child_gets_errors_and_changes_nothing) {
  const auto before = settled_holdings_of(survivors());
  {
    spawn_options options;
    options.argv = {own_program("fork_parent"), socket(), name, "fork"};
    auto parent = child::start(options);
    const pid_t forked = std::stoi(parent.wait_for_line("^child [0-9]+$", seconds(10)).substr(6));
    for (const char* call :
         {"list", "open", "try_open", "stat", "create", "publish", "remove", "subscribe"}) {
      EXPECT_EQ(parent.wait_for_line("^child .*:", seconds(10)),
                "child " + std::string(call) + ": forked");
    }
    parent.wait_for_line("^child waits$", seconds(10));
    // The child may be faster than its parent, which publishes after the fork.
    EXPECT_TRUE(eventually([&] { return client_.list().size() == 1; }, seconds(20)));
    parent.close_stdin();
    EXPECT_TRUE(eventually([&] { return !process_is_alive(forked); }, seconds(20)));
    // The child's end must not be mistaken for its parent's.
    EXPECT_EQ(client_.list().size(), 1U);
    EXPECT_TRUE(client_.stat(name).creator_alive);
  }
  EXPECT_TRUE(nothing_listed());
  EXPECT_TRUE(back_to(before, survivors()));
}

// ---- the broker ----

/// A round of a producer and a consumer in one process. Stops where the broker dies.
struct round_of_survivors {
  std::string socket;
  std::optional<gpushm::client> producer;
  std::optional<gpushm::client> consumer;
  std::optional<gpushm::segment> created;
  std::optional<gpushm::segment> found;

  void connect() {
    if (!producer) {
      producer = gpushm::client::connect({.socket_path = socket});
    }
    if (!consumer) {
      consumer = gpushm::client::connect({.socket_path = socket});
    }
  }

  void run() {
    connect();
    created = producer->create(name,
                               {.size_bytes = round_size_bytes,
                                .device = "host",
                                .lifetime = gpushm::lifetime::persistent,
                                .chunk_bytes = round_chunk_bytes});
    created->fill(round_pattern);
    created->publish(round_metadata);
    found = consumer->open(name);
    auto again = consumer->open(name);
    again.reset();
    if (consumer->list().size() != 1 || producer->stat(name).leases != 2) {
      throw std::runtime_error("the broker miscounts");
    }
    producer->remove(name);
  }
};

/// Runs `call`; accepts only errors that the death of a broker may cause.
::testing::AssertionResult survives_broker(const std::function<void()>& call) {
  try {
    call();
  } catch (const gpushm::error& failure) {
    if (failure.code() != gpushm::errc::broker_gone &&
        failure.code() != gpushm::errc::broker_unreachable) {
      return ::testing::AssertionFailure() << failure.what();
    }
  }
  return ::testing::AssertionSuccess();
}

void expect_usable_without_broker(const std::optional<gpushm::segment>& segment, bool filled) {
  if (segment && *segment) {
    EXPECT_TRUE(eventually([&] { return segment->state() == gpushm::segment_state::broker_gone; },
                           seconds(4)));
    EXPECT_EQ(holds_pattern(*segment), filled);
  }
}

class death_of_broker : public ::testing::Test {
 protected:
  /// Returns false if the broker completed the round.
  bool kill_broker_at(std::uint64_t k) {
    spawn_options options;
    options.argv = {own_program("test_broker"), socket_};
    traced_process broker(options, k);
    broker.wait_for_line("^ready$", seconds(20));
    round_of_survivors round{socket_, {}, {}, {}, {}};
    begin_window(broker);
    EXPECT_TRUE(survives_broker([&] { round.run(); }));
    broker.write("end\n");
    const auto result = finish(broker);
    SCOPED_TRACE("killed at call " + std::to_string(k) + ", " + result.fatal_call);
    EXPECT_TRUE(result.began) << broker.output().all_output();
    // "publish" follows the fill, so every process that has opened the segment sees the pattern.
    expect_usable_without_broker(round.found, true);
    expect_successor_serves(round);
    return result.killed;
  }

  /// Waits for its exit: its output ends slightly earlier.
  static void expect_dead(traced_process& broker) {
    EXPECT_TRUE(eventually([&] { return !process_is_alive(broker.pid()); }, seconds(20)))
        << broker.output().all_output();
  }

  /// From here on the broker may be dead, even before it can report that the window has begun.
  static void begin_window(traced_process& broker) {
    broker.write("begin\n");
    try {
      broker.wait_for_line("^did begin$", seconds(10));
    } catch (const gpushm_testing::harness_error&) {
      expect_dead(broker);
    }
  }

  /// Waits until the broker has completed the round and kills it, or until it is dead.
  static trace_result finish(traced_process& broker) {
    try {
      broker.wait_for_line("^did end$", seconds(10));
      gpushm::base::signal_process(broker.pid(), SIGKILL);
    } catch (const gpushm_testing::harness_error&) {
      expect_dead(broker);
    }
    return broker.wait_end(seconds(10));
  }

  /// The same clients continue with the next broker; their mappings stay valid.
  void expect_successor_serves(round_of_survivors& round) {
    broker_process successor(socket_);
    round.connect();
    // Clients that have not noticed the death yet get one error now.
    EXPECT_TRUE(survives_broker([&] { (void)round.producer->list(); }));
    EXPECT_TRUE(survives_broker([&] { (void)round.consumer->list(); }));
    auto created = round.producer->create(name, {.size_bytes = 4096, .device = "host"});
    created.fill(round_pattern);
    created.publish();
    EXPECT_TRUE(holds_pattern(round.consumer->open(name)));
    if (round.found && *round.found) {
      EXPECT_TRUE(holds_pattern(*round.found));
    }
  }

  temp_dir directory_;
  std::string socket_ = directory_ / "socket";
};

TEST_F(death_of_broker, at_every_call_leaves_working_clients_and_nothing_else) {
  if (gpushm::base::under_thread_sanitizer) {
    GTEST_SKIP() << "ThreadSanitizer maps memory for itself in the broker's round: 5,700 calls "
                    "instead of 228, which take more than 15 minutes";
  }
  std::optional<holdings> before;
  std::uint64_t k = first_death();
  for (; k < too_many_calls; k += step_between_deaths()) {
    const bool killed = kill_broker_at(k);
    // The first round also creates what the libraries keep permanently.
    if (!before) {
      before = settled_holdings_of({::getpid()});
    }
    ASSERT_TRUE(back_to(*before, {::getpid()})) << "after the death at call " << k;
    if (HasFatalFailure() || HasNonfatalFailure() || !killed) {
      break;
    }
  }
  ASSERT_LT(k, too_many_calls);
  EXPECT_GT(k, 20U) << "a round cannot have so few calls: the marks are wrong";
  RecordProperty("calls", static_cast<int>(k - 1));
}

}  // namespace
}  // namespace gpushm_tests
