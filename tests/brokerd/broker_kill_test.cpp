// SPDX-License-Identifier: Apache-2.0
// A broker that is killed with SIGKILL, or taken over by another keeper and broker, while clients
// work: they notice nothing, and nothing is lost or left. Host memory. GPUSHM_BROKER_KILLS and
// GPUSHM_BROKER_TAKEOVERS set how often.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/process/signals.hpp"
#include "gpushm/gpushm.hpp"
#include "tests/support/broker_process/holdings.hpp"
#include "tests/support/brokerd/brokerd.hpp"
#include "tests/support/process/child.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/environment.hpp"
#include "tests/support/process/proc_counters.hpp"
#include "tests/support/process/programs.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace {

using namespace std::chrono_literals;
using gpushm_testing::child;
using gpushm_testing::eventually;
using gpushm_testing::number_from_environment;
using gpushm_testing::own_program;

constexpr std::size_t segment_bytes = std::size_t{64} * 1024;

class replaced_broker : public testing::Test {
 protected:
  replaced_broker() {
    EXPECT_TRUE(eventually([&] { return broker_pid() != 0 && can_connect(); }, 20s));
  }

  /// 0: none at the moment.
  [[nodiscard]] pid_t broker_pid() const { return gpushm_testing::program_kept_by(keeper_.pid()); }
  /// Kills it. Returns whether it has a successor.
  [[nodiscard]] bool kill_broker() const {
    return gpushm_testing::kill_program_kept_by(keeper_.pid());
  }
  /// Starts a keeper, which takes over, with `more` arguments for its broker.
  [[nodiscard]] child start_keeper(const std::vector<std::string>& more = {}) {
    std::vector<std::string> for_broker{"--domain", "default", "--max-segments", "65536"};
    for_broker.insert(for_broker.end(), more.begin(), more.end());
    gpushm_testing::make_run_directory(run_dir_);
    auto options =
        gpushm_testing::brokerd_command(run_dir_,
                                        for_broker,
                                        {"--socket",
                                         run_dir_ + "/keeper/notify-" + std::to_string(keepers_++),
                                         "--takeover",
                                         run_dir_ + "/keeper/takeover",
                                         "--takeover-pause",
                                         "0"});
    if (!other_programs_.empty() && keepers_ % 2 == 0) {
      for (std::string& each : options.argv) {
        for (const std::string name : {"gpushm-keeper", "gpushm-brokerd"}) {
          each = each == own_program(name) ? other_programs_ + "/" + name : each;
        }
      }
    }
    return child::start(options);
  }
  /// Returns whether the previous keeper has ended.
  [[nodiscard]] bool take_over() {
    child next = start_keeper();
    const bool result = keeper_.wait_exit(20s) == gpushm_testing::exited(0);
    keeper_ = std::move(next);
    return result;
  }
  /// Returns whether a keeper whose broker fails has ended, after that has had everything.
  [[nodiscard]] bool fail_to_take_over() {
    return start_keeper({"--no-such-option"}).wait_exit(20s) == gpushm_testing::exited(2);
  }
  [[nodiscard]] gpushm::client connect() const {
    return gpushm::client::connect({.socket_path = socket_});
  }
  [[nodiscard]] bool can_connect() const {
    try {
      static_cast<void>(connect().list());
      return true;
    } catch (const gpushm::error&) {
      return false;
    }
  }
  /// Of each kind, once they have not changed for a while: connections end after their clients.
  [[nodiscard]] static gpushm_testing::descriptor_counts descriptors_of(pid_t pid) {
    return gpushm_tests::settled_holdings_of({pid}).descriptors;
  }

  /// Of its guard, and of its program.
  static constexpr std::size_t keepers_pidfds = 2;

  void TearDown() override {
    if (HasFailure()) {
      std::printf("%s\n", keeper_.output().all_output().c_str());
    }
  }

  gpushm_testing::temp_dir directory_{0755};
  const std::string run_dir_ = directory_ / "run";
  const std::string socket_ = run_dir_ + "/d/default/socket";
  /// A directory with keeper and broker of another version, for every second takeover; empty: none.
  std::string other_programs_;
  int keepers_ = 0;
  child keeper_ = start_keeper();
};

void fill(gpushm::segment& segment, std::uint8_t with) {
  std::memset(segment.mutable_data(), with, segment_bytes);
}
void fill_first(gpushm::segment& segment, std::uint8_t with) {
  *static_cast<std::uint8_t*>(segment.mutable_data()) = with;
}
[[nodiscard]] bool has(const gpushm::segment& segment, std::uint8_t value) {
  const auto* const bytes = static_cast<const std::uint8_t*>(segment.data());
  return bytes[0] == value && std::memcmp(bytes, bytes + 1, segment_bytes - 1) == 0;
}

/// The errors of threads.
class failures {
 public:
  void add(const std::string& line) {
    const std::lock_guard lock(mutex_);
    if (all_.size() < 20) {
      all_.push_back(line);
    }
    any_ = true;
  }
  [[nodiscard]] bool any() const { return any_; }
  [[nodiscard]] std::string text() const {
    const std::lock_guard lock(mutex_);
    std::string result;
    for (const std::string& each : all_) {
      result += each + '\n';
    }
    return result;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> all_;
  std::atomic<bool> any_ = false;
};

/// Clients in pairs, which connect, create, fill, publish, open, compare and remove segments.
class load {
 public:
  /// `connect` is called in the threads.
  explicit load(const std::function<gpushm::client()>& connect) {
    for (int worker = 0; worker < workers; ++worker) {
      threads_.emplace_back([this, connect, worker] {
        try {
          gpushm::client exporter = connect();
          work(std::move(exporter), connect, worker);
        } catch (const std::exception& why) {
          failed_.add(why.what());
        }
      });
    }
  }
  load(const load&) = delete;
  load& operator=(const load&) = delete;
  ~load() { stop(); }

  void stop() {
    stop_ = true;
    for (std::thread& each : threads_) {
      each.join();
    }
    threads_.clear();
  }
  [[nodiscard]] const failures& failed() const { return failed_; }
  [[nodiscard]] std::uint64_t operations() const { return operations_; }
  /// Of those that have ended since the last call: connecting, and the other operations.
  struct longest_times {
    std::chrono::microseconds connect;
    std::chrono::microseconds other;
  };
  [[nodiscard]] longest_times longest() {
    return {std::chrono::microseconds(longest_connect_us_.exchange(0)),
            std::chrono::microseconds(longest_us_.exchange(0))};
  }

 private:
  static constexpr int workers = 4;
  static constexpr std::uint32_t rounds_connected = 8;

  /// Runs an operation.
  template <typename Operation>
  auto timed(Operation&& operation) {
    return timed_in(longest_us_, operation);
  }
  template <typename Operation>
  auto timed_in(std::atomic<std::int64_t>& longest, Operation&& operation) {
    const ending at_end{*this, longest, std::chrono::steady_clock::now()};
    return operation();
  }
  struct ending {
    load& of;
    std::atomic<std::int64_t>& longest;
    std::chrono::steady_clock::time_point start;
    ending(load& whose,
           std::atomic<std::int64_t>& which,
           std::chrono::steady_clock::time_point when)
        : of(whose), longest(which), start(when) {}
    ending(const ending&) = delete;
    ending& operator=(const ending&) = delete;
    ~ending() {
      const auto time = std::chrono::steady_clock::now() - start;
      const auto us = std::chrono::duration_cast<std::chrono::microseconds>(time).count();
      auto before = longest.load();
      while (before < us && !longest.compare_exchange_weak(before, us)) {
      }
      ++of.operations_;
    }
  };

  void work(gpushm::client exporter, const std::function<gpushm::client()>& connect, int worker) {
    gpushm::client importer = connect();
    for (std::uint32_t round = 1; !stop_ && !failed_.any(); ++round) {
      if (round % rounds_connected == 0) {
        importer = timed_in(longest_connect_us_, connect);
      }
      const std::string name = "w" + std::to_string(worker) + "-" + std::to_string(round);
      const auto mark = static_cast<std::uint8_t>(round * 7 + static_cast<unsigned>(worker));
      auto created = timed(
          [&] { return exporter.create(name, {.size_bytes = segment_bytes, .device = "host"}); });
      fill(created, mark);
      timed([&] { created.publish(); });
      {
        const auto opened = timed([&] { return importer.open(name); });
        if (!has(opened, mark)) {
          failed_.add(name + ": other contents");
        }
        const auto leases = timed([&] { return importer.stat(name).leases; });
        if (leases != 2) {
          failed_.add(name + ": " + std::to_string(leases) + " leases");
        }
      }
      timed([&] { exporter.remove(name); });
    }
  }

  failures failed_;
  std::atomic<bool> stop_ = false;
  std::atomic<std::uint64_t> operations_ = 0;
  std::atomic<std::int64_t> longest_us_ = 0;
  std::atomic<std::int64_t> longest_connect_us_ = 0;
  std::vector<std::thread> threads_;
};

class replaced_broker_with_readers : public replaced_broker {
 protected:
  /// Five times, calls each of `replacements`, which return whether the broker was replaced.
  void expect_continues(const std::vector<std::function<bool()>>& replacements) const {
    auto creator = connect();
    auto created = creator.create(
        "weights",
        {.size_bytes = segment_bytes, .device = "host", .lifetime = gpushm::lifetime::persistent});
    fill(created, 7);
    created.publish();
    auto reader = connect();
    const auto held = reader.open("weights");
    const auto epoch = reader.broker().epoch;
    for (int round = 0; round < 5; ++round) {
      for (const auto& replace : replacements) {
        ASSERT_TRUE(replace());
        EXPECT_NE(held.state(), gpushm::segment_state::broker_gone);
        // The one of the client that has just ended is perhaps the next broker's to end.
        EXPECT_TRUE(eventually([&] { return reader.stat("weights").leases == 2; }, 20s));
        EXPECT_EQ(held.state(), gpushm::segment_state::live);
        EXPECT_TRUE(has(connect().open("weights"), 7));
        EXPECT_EQ(connect().broker().epoch, epoch);
      }
    }
  }
};

TEST_F(replaced_broker_with_readers, continues_persistent_memory_connections_and_leases) {
  expect_continues({[&] { return kill_broker(); }});
}

TEST_F(replaced_broker_with_readers, continues_connections_and_leases_in_the_next_keeper) {
  expect_continues({[&] { return fail_to_take_over(); },
                    [&] { return take_over(); },
                    [&] { return kill_broker(); }});
}

/// More than a socket's queue (net.unix.max_dgram_qlen) has room for, and then no further request.
TEST_F(replaced_broker, leaves_nothing_in_a_keeper_that_did_not_read_for_a_while) {
  const auto before = descriptors_of(keeper_.pid());
  std::vector<gpushm::client> clients;
  for (int i = 0; i < 200; ++i) {
    clients.push_back(connect());
  }
  const pid_t worker = gpushm_testing::worker_of_keeper(keeper_.pid());
  ASSERT_EQ(gpushm::base::signal_process(worker, SIGSTOP), 0);
  clients.clear();
  EXPECT_TRUE(eventually(
      [&] {
        return gpushm_testing::total(gpushm_testing::count_descriptors(broker_pid()), "pidfd") <= 1;
      },
      20s))
      << "connections are left";
  ASSERT_EQ(gpushm::base::signal_process(worker, SIGCONT), 0);
  EXPECT_TRUE(eventually([&] { return descriptors_of(keeper_.pid()) == before; }, 20s))
      << gpushm_testing::to_text(descriptors_of(keeper_.pid()))
      << ", before: " << gpushm_testing::to_text(before);
}

/// A value in /proc of a process or thread; 0: there is none.
std::uint64_t proc_status(const std::filesystem::path& path, const std::string& name) {
  std::ifstream file(path / "status");
  std::string word;
  while (file >> word && word != name + ":") {
  }
  std::uint64_t value = 0;
  return file >> value ? value : 0;
}
std::string name_of(const std::filesystem::path& thread) {
  std::ifstream file(thread / "comm");
  std::string result;
  std::getline(file, result);
  return result;
}

/// A table that threads or processes share grows only after all CPUs have had a pause.
TEST_F(replaced_broker, opens_descriptors_without_a_wait_for_a_larger_table) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const auto limit_now = std::min<std::uint64_t>(limit.rlim_max, 65'536);
  EXPECT_GE(proc_status("/proc/" + std::to_string(keeper_.pid()), "FDSize"), limit_now);
  for (const bool is_successor : {false, true}) {
    if (is_successor) {
      ASSERT_TRUE(kill_broker());
      ASSERT_TRUE(eventually([&] { return can_connect(); }, 20s));
    }
    const std::filesystem::path broker = "/proc/" + std::to_string(broker_pid());
    EXPECT_GE(proc_status(broker, "FDSize"), limit_now) << "of its successor: " << is_successor;
    int receivers = 0;
    for (const auto& thread : std::filesystem::directory_iterator(broker / "task")) {
      if (name_of(thread) == "gpushm-receiver") {
        ++receivers;
        EXPECT_GE(proc_status(thread, "FDSize"), std::min<std::uint64_t>(limit_now, 4'096));
      }
    }
    EXPECT_GT(receivers, 0);
  }
}

/// A broker with many segments; GPUSHM_BROKER_SEGMENTS sets how many (one descriptor each).
class replaced_broker_with_many : public replaced_broker {
 protected:
  /// Returns the time from the start of `replace` until the next broker answers.
  [[nodiscard]] double measure(const std::function<bool()>& replace) const {
    const auto start = std::chrono::steady_clock::now();
    EXPECT_TRUE(replace());
    EXPECT_TRUE(eventually([&] { return can_connect(); }, 60s));
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
        .count();
  }
};

TEST_F(replaced_broker_with_many, continues_all) {
  const int many = number_from_environment("GPUSHM_BROKER_SEGMENTS", 1'000);
  auto creator = connect();
  std::vector<std::string> names;
  for (int i = 0; i < many; ++i) {
    names.push_back("s" + std::to_string(i));
    auto each = creator.create(
        names.back(),
        {.size_bytes = 4'096, .device = "host", .lifetime = gpushm::lifetime::persistent});
    fill_first(each, static_cast<std::uint8_t>(i));
    each.publish();
  }
  const double killed = measure([&] { return kill_broker(); });
  const double taken_over = measure([&] { return take_over(); });
  EXPECT_EQ(connect().list().size(), names.size());
  auto reader = connect();
  for (int i = 0; i < many; i += std::max(1, many / 100)) {
    EXPECT_EQ(
        *static_cast<const std::uint8_t*>(reader.open(names[static_cast<std::size_t>(i)]).data()),
        static_cast<std::uint8_t>(i));
  }
  for (const std::string& each : names) {
    creator.remove(each);
  }
  EXPECT_TRUE(reader.list().empty());
  std::printf("{\"segments\": %d, \"killed_ms\": %.1f, \"taken_over_ms\": %.1f}\n",
              many,
              killed,
              taken_over);
}

/// Replaces the broker `times` times under load, and compares what is left.
class replaced_broker_under_load : public replaced_broker {
 protected:
  void run(int times, const std::function<void()>& replace) {
    // A program that has taken over has the pipe by which its predecessor sees that it lives.
    replace();
    const auto is_idle = [&] {
      return descriptors_of(keeper_.pid())["anon_inode:[pidfd]"] == keepers_pidfds;
    };
    ASSERT_TRUE(eventually(is_idle, 60s));
    const auto kept_before = descriptors_of(keeper_.pid());
    const auto open_before = descriptors_of(broker_pid());
    const auto start = std::chrono::steady_clock::now();
    load clients([&] { return connect(); });
    std::minstd_rand random(1);
    std::vector<std::chrono::microseconds> gaps;
    std::vector<std::chrono::microseconds> connects;
    for (int done = 0; done < times && !clients.failed().any(); ++done) {
      static_cast<void>(clients.longest());
      replace();
      // Each third one is replaced again at any time of its start; the others once they work.
      if (done % 3 != 0) {
        const auto before = clients.operations();
        EXPECT_TRUE(eventually(
            [&] { return clients.operations() > before + 4 || clients.failed().any(); }, 20s));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20 + random() % 60));
      const auto longest = clients.longest();
      gaps.push_back(longest.other);
      connects.push_back(longest.connect);
    }
    clients.stop();
    EXPECT_FALSE(clients.failed().any())
        << clients.failed().text() << "after " << gaps.size() << " times";
    report(std::move(gaps),
           std::move(connects),
           clients.operations(),
           std::chrono::steady_clock::now() - start);
    EXPECT_TRUE(connect().list().empty());
    EXPECT_TRUE(eventually([&] { return descriptors_of(keeper_.pid()) == kept_before; }, 20s))
        << gpushm_testing::to_text(descriptors_of(keeper_.pid()))
        << " in the keeper, before: " << gpushm_testing::to_text(kept_before);
    EXPECT_TRUE(eventually([&] { return descriptors_of(broker_pid()) == open_before; }, 20s))
        << gpushm_testing::to_text(descriptors_of(broker_pid()))
        << " in the broker, before: " << gpushm_testing::to_text(open_before);
  }

 private:
  static std::string percentiles(std::vector<std::chrono::microseconds>& microseconds) {
    std::sort(microseconds.begin(), microseconds.end());
    const auto at = [&](std::size_t percent) {
      return microseconds.empty()
                 ? 0.0
                 : static_cast<double>(
                       microseconds[(microseconds.size() - 1) * percent / 100].count()) /
                       1000;
    };
    std::array<char, 100> text{};
    std::snprintf(text.data(),
                  text.size(),
                  "{\"p50\": %.1f, \"p99\": %.1f, \"max\": %.1f}",
                  at(50),
                  at(99),
                  at(100));
    return text.data();
  }
  static void report(std::vector<std::chrono::microseconds> gaps,
                     std::vector<std::chrono::microseconds> connects,
                     std::uint64_t operations,
                     std::chrono::duration<double> time) {
    std::printf(
        "{\"replacements\": %zu, \"operations\": %llu, \"operations_per_s\": %.0f, "
        "\"longest_operation_ms\": %s, \"longest_connect_ms\": %s}\n",
        gaps.size(),
        static_cast<unsigned long long>(operations),
        static_cast<double>(operations) / time.count(),
        percentiles(gaps).c_str(),
        percentiles(connects).c_str());
  }
};

TEST_F(replaced_broker_under_load, loses_and_repeats_nothing_when_killed) {
  run(number_from_environment("GPUSHM_BROKER_KILLS", 60), [&] { EXPECT_TRUE(kill_broker()); });
}

/// The broker, the keeper's worker, or both at once.
TEST_F(replaced_broker_under_load, loses_and_repeats_nothing_when_its_keeper_is_killed) {
  std::minstd_rand random(2);
  run(number_from_environment("GPUSHM_BROKER_KILLS", 60), [&] {
    const auto which = random() % 3;
    if (which != 0) {
      const pid_t worker = gpushm_testing::worker_of_keeper(keeper_.pid());
      gpushm::base::signal_process(worker, SIGKILL);
      if (which == 1) {
        EXPECT_NE(gpushm_testing::worker_of_keeper(keeper_.pid(), worker), 0);
        return;
      }
    }
    EXPECT_TRUE(kill_broker());
  });
}

TEST_F(replaced_broker_under_load, loses_and_repeats_nothing_in_takeovers) {
  run(number_from_environment("GPUSHM_BROKER_TAKEOVERS", 30), [&] { EXPECT_TRUE(take_over()); });
}

TEST_F(replaced_broker_under_load, loses_and_repeats_nothing_in_takeovers_that_fail) {
  run(number_from_environment("GPUSHM_BROKER_TAKEOVERS", 30),
      [&] { EXPECT_TRUE(fail_to_take_over()); });
}

/// GPUSHM_OTHER_BROKER: the directory of gpushm-keeper and gpushm-brokerd of another version, which
/// knows `continued`: else connections end.
TEST_F(replaced_broker_under_load, loses_and_repeats_nothing_between_two_versions) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no thread changes the environment
  const char* const other = std::getenv("GPUSHM_OTHER_BROKER");
  if (other == nullptr) {
    GTEST_SKIP() << "no other version (GPUSHM_OTHER_BROKER)";
  }
  other_programs_ = other;
  run(number_from_environment("GPUSHM_BROKER_TAKEOVERS", 30), [&] { EXPECT_TRUE(take_over()); });
}

}  // namespace
