// SPDX-License-Identifier: Apache-2.0
// A broker that is killed with SIGKILL while clients work: they notice nothing, and nothing is lost
// or left. Host memory. GPUSHM_BROKER_KILLS sets the number of kills.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gpushm/gpushm.hpp"
#include "testing/broker_process/holdings.hpp"
#include "testing/process/child.hpp"
#include "testing/process/deadline.hpp"
#include "testing/process/proc_counters.hpp"
#include "testing/process/programs.hpp"
#include "testing/process/temp_dir.hpp"

namespace {

using namespace std::chrono_literals;
using gpushm_testing::child;
using gpushm_testing::eventually;
using gpushm_testing::own_program;

constexpr std::size_t segment_bytes = std::size_t{64} * 1024;

class killed_broker : public testing::Test {
 protected:
  killed_broker() {
    EXPECT_TRUE(eventually([&] { return broker_pid() != 0 && can_connect(); }, 20s));
  }

  /// 0: none at the moment.
  [[nodiscard]] pid_t broker_pid() const {
    const std::string keeper = std::to_string(keeper_.pid());
    std::ifstream children("/proc/" + keeper + "/task/" + keeper + "/children");
    pid_t pid = 0;
    children >> pid;
    return pid;
  }
  /// Kills it. Returns whether it has a successor.
  [[nodiscard]] bool replace_broker() const {
    const pid_t before = broker_pid();
    if (before != 0) {
      ::kill(before, SIGKILL);
    }
    return eventually([&] { return broker_pid() != 0 && broker_pid() != before; }, 20s);
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

  void TearDown() override {
    if (HasFailure()) {
      std::printf("%s\n", keeper_.output().all_output().c_str());
    }
  }

  gpushm_testing::temp_dir directory_;
  std::string socket_ = directory_ / "socket";
  child keeper_ = child::start({.argv = {own_program("gpushm-keeper"),
                                         "--socket",
                                         directory_ / "notify",
                                         "--",
                                         own_program("gpushm-brokerd"),
                                         "--socket",
                                         socket_}});
};

void fill(gpushm::segment& of, std::uint8_t with) {
  std::memset(of.mutable_data(), with, segment_bytes);
}
[[nodiscard]] bool has(const gpushm::segment& in, std::uint8_t what) {
  const auto* const bytes = static_cast<const std::uint8_t*>(in.data());
  return bytes[0] == what && std::memcmp(bytes, bytes + 1, segment_bytes - 1) == 0;
}

/// The errors of threads.
class failures {
 public:
  void add(const std::string& what) {
    const std::lock_guard lock(mutex_);
    if (all_.size() < 20) {
      all_.push_back(what);
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

TEST_F(killed_broker, continues_persistent_memory_connections_and_leases) {
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
    ASSERT_TRUE(replace_broker());
    EXPECT_NE(held.state(), gpushm::segment_state::broker_gone);
    EXPECT_EQ(reader.stat("weights").leases, 2U);
    EXPECT_EQ(held.state(), gpushm::segment_state::live);
    EXPECT_TRUE(has(connect().open("weights"), 7));
    EXPECT_EQ(connect().broker().epoch, epoch);
  }
}

TEST_F(killed_broker, loses_and_repeats_nothing_while_clients_work) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no thread changes the environment
  const char* const wanted = std::getenv("GPUSHM_BROKER_KILLS");
  const int kills = wanted != nullptr ? std::atoi(wanted) : 60;
  const auto kept_before = descriptors_of(keeper_.pid());
  const auto open_before = descriptors_of(broker_pid());
  constexpr int workers = 4;
  failures failed;
  std::atomic<bool> stop = false;
  std::atomic<std::uint64_t> operations = 0;
  std::vector<std::thread> threads;
  for (int worker = 0; worker < workers; ++worker) {
    threads.emplace_back([&, worker] {
      try {
        auto exporter = connect();
        auto importer = connect();
        for (std::uint32_t round = 0; !stop && !failed.any(); ++round) {
          const std::string name = "w" + std::to_string(worker) + "-" + std::to_string(round);
          const auto mark = static_cast<std::uint8_t>(round * 7 + static_cast<unsigned>(worker));
          auto created = exporter.create(name, {.size_bytes = segment_bytes, .device = "host"});
          fill(created, mark);
          created.publish();
          {
            const auto opened = importer.open(name);
            if (!has(opened, mark)) {
              failed.add(name + ": other contents");
            }
            if (importer.stat(name).leases != 2) {
              failed.add(name + ": " + std::to_string(importer.stat(name).leases) + " leases");
            }
          }
          exporter.remove(name);
          operations += 5;
        }
      } catch (const std::exception& why) {
        failed.add(why.what());
      }
    });
  }
  std::minstd_rand random(1);
  int done = 0;
  for (; done < kills && !failed.any(); ++done) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20 + random() % 60));
    EXPECT_TRUE(replace_broker());
  }
  stop = true;
  for (std::thread& each : threads) {
    each.join();
  }
  EXPECT_FALSE(failed.any()) << failed.text() << "after " << done << " kills";
  RecordProperty("operations", static_cast<int>(operations.load()));
  std::printf(
      "%d kills, %llu operations\n", done, static_cast<unsigned long long>(operations.load()));
  EXPECT_TRUE(connect().list().empty());
  EXPECT_TRUE(eventually([&] { return descriptors_of(keeper_.pid()) == kept_before; }, 20s))
      << gpushm_testing::to_text(descriptors_of(keeper_.pid()))
      << " in the keeper, before: " << gpushm_testing::to_text(kept_before);
  EXPECT_TRUE(eventually([&] { return descriptors_of(broker_pid()) == open_before; }, 20s))
      << gpushm_testing::to_text(descriptors_of(broker_pid()))
      << " in the broker, before: " << gpushm_testing::to_text(open_before);
}

}  // namespace
