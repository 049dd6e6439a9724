// SPDX-License-Identifier: Apache-2.0
// Which opened segments a client caches, and when it drops them. Client and broker in one process,
// host memory.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <thread>

#include "base/files/fork_guard.hpp"
#include "base/files/sanitizers.hpp"
#include "gpushm/broker.hpp"
#include "gpushm/gpushm.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/proc_counters.hpp"
#include "tests/support/process/programs.hpp"
#include "tests/support/process/quiet_fork.hpp"
#include "tests/support/process/temp_dir.hpp"
#include "tests/support/ptrace/traced_process.hpp"

namespace gpushm {
namespace {

using namespace std::chrono_literals;
using gpushm_testing::count_descriptors;
using gpushm_testing::count_mappings;
using gpushm_testing::eventually;
using gpushm_testing::to_text;
using gpushm_testing::total;

constexpr std::uint64_t page = 4096;
constexpr std::uint64_t unlimited = std::numeric_limits<std::uint64_t>::max();

/// Mappings of segments' memory in this process: of clients and, as descriptors, of the broker.
std::size_t chunk_mappings() {
  return count_mappings(::getpid(), "memfd:gpushm-chunk");
}
std::size_t chunk_descriptors() {
  return total(count_descriptors(::getpid()), "memfd:gpushm-chunk");
}

/// Sets a variable during its lifetime.
class variable {
 public:
  variable(const char* name, const char* value) : name_(name) {
    EXPECT_EQ(::getenv(name), nullptr) << "the caller's environment would affect this test";
    ::setenv(name, value, 1);
  }
  variable(const variable&) = delete;
  variable& operator=(const variable&) = delete;
  ~variable() { ::unsetenv(name_); }

 private:
  const char* name_;
};

template <typename Call>
std::string error_of(Call&& call, errc expected) {
  try {
    call();
  } catch (const error& why) {
    EXPECT_EQ(to_string(why.code()), to_string(expected));
    return why.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

class caching : public testing::Test {
 protected:
  caching() : mappings_(count_of_mappings()) {
    static_cast<void>(base::life_pipe());  // opened once per process, by the first connection
    descriptors_ = total(count_descriptors(::getpid()));
    options_.socket_path = directory_ / "socket";
    broker_.emplace(broker::start(options_));
    producer_.emplace(connect());
  }
  /// Nothing is left after the test.
  void TearDown() override {
    producer_.reset();
    broker_.reset();
    EXPECT_EQ(chunk_mappings(), 0U);
    EXPECT_EQ(count_of_mappings(), mappings_);
    const auto now = count_descriptors(::getpid());
    EXPECT_EQ(total(now), descriptors_) << to_text(now);
  }
  static std::size_t count_of_mappings() { return count_mappings(::getpid(), "memfd:gpushm"); }

  client connect(const cache_options& cache = {}) {
    return client::connect({.socket_path = options_.socket_path, .cache = cache});
  }
  /// Creates a persistent segment without users here, whose first bytes are its generation.
  gpushm::generation make(const std::string& name, std::uint64_t size = page) {
    segment created = producer_->create(
        name, {.size_bytes = size, .device = "host", .lifetime = lifetime::persistent});
    const gpushm::generation generation = created.generation();
    std::memcpy(created.mutable_data(), &generation, sizeof generation);
    created.publish();
    return generation;
  }
  static gpushm::generation written_in(const segment& opened) {
    gpushm::generation found = 0;
    std::memcpy(&found, opened.data(), sizeof found);
    return found;
  }
  std::uint32_t leases(const std::string& name) { return producer_->stat(name).leases; }
  [[nodiscard]] bool leases_become(const std::string& name, std::uint32_t count) {
    return eventually([&] { return leases(name) == count; }, 4s);
  }
  static bool is_hit(client& user, const std::string& name) {
    const auto before = user.cache_stats();
    static_cast<void>(user.open(name));
    const auto after = user.cache_stats();
    EXPECT_EQ(after.hits + after.misses, before.hits + before.misses + 1);
    return after.hits == before.hits + 1;
  }

  gpushm_testing::temp_dir directory_;
  std::size_t descriptors_ = 0;
  std::size_t mappings_;
  broker_options options_;
  std::optional<broker> broker_;
  std::optional<client> producer_;
};

// ---- hits ----

TEST_F(caching, second_open_shares_first_mapping) {
  const auto generation = make("w");
  client user = connect();
  const segment first = user.open("w");
  EXPECT_EQ(user.cache_stats().misses, 1U);
  EXPECT_EQ(user.cache_stats().hits, 0U);
  const segment second = user.open("w");
  EXPECT_EQ(second.data(), first.data());
  EXPECT_EQ(second.generation(), generation);
  EXPECT_EQ(second.access(), access::read);
  const auto stats = user.cache_stats();
  EXPECT_EQ(stats.hits, 1U);
  EXPECT_EQ(stats.misses, 1U);
  EXPECT_EQ(stats.used_entries, 1U);
  EXPECT_EQ(stats.used_bytes, page);
  EXPECT_EQ(stats.kept_entries, 0U);
  EXPECT_EQ(leases("w"), 1U);
  EXPECT_EQ(chunk_mappings(), 1U);

  // Another access needs another mapping, on the same lease.
  const segment writable = user.open("w", {.access = access::read_write});
  EXPECT_NE(writable.data(), first.data());
  EXPECT_EQ(user.cache_stats().misses, 2U);
  EXPECT_EQ(user.cache_stats().used_entries, 2U);
  EXPECT_EQ(chunk_mappings(), 2U);
  EXPECT_EQ(leases("w"), 1U);
}

TEST_F(caching, keeps_persistent_segment_after_last_user) {
  const auto generation = make("w");
  client user = connect();
  segment first = user.open("w");
  segment second = user.open("w");
  const void* const data = first.data();
  first.reset();
  EXPECT_EQ(user.cache_stats().used_entries, 1U);
  EXPECT_EQ(user.cache_stats().kept_entries, 0U);
  second.reset();
  EXPECT_EQ(user.cache_stats().used_entries, 0U);
  EXPECT_EQ(user.cache_stats().used_bytes, 0U);
  EXPECT_EQ(user.cache_stats().kept_entries, 1U);
  EXPECT_EQ(user.cache_stats().kept_bytes, page);
  EXPECT_EQ(chunk_mappings(), 1U);
  static_cast<void>(user.list());  // earlier releases have been read
  EXPECT_EQ(leases("w"), 1U);
  const segment again = user.open("w");
  EXPECT_EQ(again.data(), data);
  EXPECT_EQ(written_in(again), generation);
  EXPECT_EQ(user.cache_stats().hits, 2U);
  EXPECT_EQ(user.cache_stats().used_entries, 1U);
  EXPECT_EQ(user.cache_stats().kept_entries, 0U);
  EXPECT_EQ(user.cache_stats().kept_bytes, 0U);
}

TEST_F(caching, does_not_keep_leased_segment) {
  segment created = producer_->create("kv", {.size_bytes = page, .device = "host"});
  created.publish();
  client user = connect();
  segment first = user.open("kv");
  segment second = user.open("kv");
  EXPECT_EQ(user.cache_stats().hits, 1U) << "a hit while it is in use";
  EXPECT_EQ(leases("kv"), 2U);
  EXPECT_EQ(chunk_mappings(), 2U);
  first.reset();
  second.reset();
  EXPECT_EQ(chunk_mappings(), 1U) << "the creator's mapping";
  EXPECT_TRUE(leases_become("kv", 1));
  EXPECT_EQ(user.cache_stats().kept_entries, 0U);
  EXPECT_EQ(user.cache_stats().evictions, 0U);
  EXPECT_FALSE(is_hit(user, "kv"));
}

TEST_F(caching, mappings_in_use_outlive_client) {
  const auto generation = make("w");
  std::optional<client> user = connect();
  make("unused");
  static_cast<void>(user->open("unused"));
  segment used = user->open("w");
  EXPECT_EQ(chunk_mappings(), 2U);
  user.reset();
  EXPECT_EQ(written_in(used), generation);
  used.reset();
  EXPECT_EQ(chunk_mappings(), 0U) << "removals would no longer be reported";
  EXPECT_TRUE(leases_become("w", 0));
  EXPECT_TRUE(leases_become("unused", 0));
}

TEST_F(caching, checks_expected_size_on_hit) {
  make("w");
  client user = connect();
  const segment used = user.open("w", {.expected_size_bytes = page});
  EXPECT_EQ(error_of([&] { static_cast<void>(user.open("w", {.expected_size_bytes = 5})); },
                     errc::size_mismatch),
            "open \"w\": the segment has 4096 bytes, not the expected 5 (expect the size that "
            "`gpushm stat` shows)");
  const auto stats = user.cache_stats();
  EXPECT_EQ(stats.hits, 0U) << "it sent a request to the broker";
  EXPECT_EQ(stats.misses, 2U);
  EXPECT_EQ(stats.used_entries, 1U);
  const segment again = user.open("w", {.expected_size_bytes = page});
  EXPECT_EQ(again.data(), used.data());
  EXPECT_EQ(user.cache_stats().hits, 1U);
  EXPECT_EQ(leases("w"), 1U);
}

TEST_F(caching, open_many_uses_cache_per_name) {
  const auto a = make("a");
  const auto b = make("b");
  const auto c = make("c");
  client user = connect();
  const segment used = user.open("b");
  static_cast<void>(user.open("c"));
  const std::vector<std::string> names{"a", "b", "missing", "c", "a", "b"};
  const auto results = user.open_many(names);
  ASSERT_EQ(results.size(), 6U);
  const gpushm::generation expected[] = {a, b, 0, c, a, b};
  for (std::size_t i = 0; i < results.size(); ++i) {
    SCOPED_TRACE(names[i]);
    if (expected[i] == 0) {
      ASSERT_FALSE(results[i]);
      EXPECT_STREQ(results[i].failure()->what(),
                   "open \"missing\": no such segment in domain default (`gpushm ls` lists "
                   "segments; an open with a timeout waits for the name)");
      continue;
    }
    ASSERT_TRUE(results[i]) << results[i].failure()->what();
    EXPECT_EQ(results[i].value().name(), names[i]);
    EXPECT_EQ(results[i].value().generation(), expected[i]);
    EXPECT_EQ(written_in(results[i].value()), expected[i]);
  }
  EXPECT_EQ(results[1].value().data(), used.data());
  EXPECT_EQ(results[0].value().data(), results[4].value().data());
  const auto stats = user.cache_stats();
  EXPECT_EQ(stats.hits, 3U);         // b, c, b
  EXPECT_EQ(stats.misses, 2U + 3U);  // the opens above; a, missing, a
  EXPECT_EQ(stats.used_entries, 3U);
  EXPECT_EQ(chunk_mappings(), 3U);
}

// ---- limits ----

TEST_F(caching, keeps_most_recently_used_entries) {
  for (const char* name : {"a", "b", "c", "d"}) {
    make(name);
  }
  client user = connect({.max_entries = 2});
  {
    const segment a = user.open("a");
    const segment b = user.open("b");
    const segment c = user.open("c");
    const segment d = user.open("d");
    EXPECT_EQ(user.cache_stats().used_entries, 4U) << "mappings in use do not count";
    EXPECT_EQ(user.cache_stats().evictions, 0U);
  }
  // Destroyed in reverse: d, c, b, a; a and b are left.
  EXPECT_EQ(user.cache_stats().evictions, 2U);
  EXPECT_EQ(user.cache_stats().kept_entries, 2U);
  EXPECT_EQ(user.cache_stats().kept_bytes, 2 * page);
  EXPECT_EQ(chunk_mappings(), 2U);
  EXPECT_TRUE(leases_become("c", 0));
  EXPECT_TRUE(leases_become("d", 0));
  EXPECT_EQ(leases("a"), 1U);

  EXPECT_TRUE(is_hit(user, "b"));   // now a is the oldest
  EXPECT_FALSE(is_hit(user, "c"));  // which evicts a
  EXPECT_TRUE(is_hit(user, "b"));
  EXPECT_FALSE(is_hit(user, "a"));  // evicts c
  EXPECT_FALSE(is_hit(user, "c"));  // evicts b, though it was used more often
  EXPECT_TRUE(is_hit(user, "a"));
  EXPECT_FALSE(is_hit(user, "b"));
  EXPECT_EQ(user.cache_stats().evictions, 6U);
  EXPECT_EQ(user.cache_stats().kept_entries, 2U);
}

TEST_F(caching, limits_bytes) {
  for (const char* name : {"a", "b", "c"}) {
    make(name);
  }
  make("large", 3 * page);
  make("huge", 5 * page);
  client user = connect({.max_bytes = 4 * page});
  for (const char* name : {"a", "b", "c"}) {
    static_cast<void>(user.open(name));
  }
  EXPECT_EQ(user.cache_stats().kept_bytes, 3 * page);
  static_cast<void>(user.open("large"));  // evicts a and b
  EXPECT_EQ(user.cache_stats().kept_bytes, 4 * page);
  EXPECT_EQ(user.cache_stats().kept_entries, 2U);
  EXPECT_EQ(user.cache_stats().evictions, 2U);
  EXPECT_TRUE(is_hit(user, "large"));
  EXPECT_TRUE(is_hit(user, "c"));

  // A mapping that exceeds the limit evicts nothing.
  static_cast<void>(user.open("huge"));
  EXPECT_EQ(user.cache_stats().evictions, 3U);
  EXPECT_EQ(user.cache_stats().kept_bytes, 4 * page);
  EXPECT_TRUE(is_hit(user, "large"));
  EXPECT_FALSE(is_hit(user, "huge"));
  EXPECT_EQ(chunk_mappings(), 2U);
}

TEST_F(caching, never_evicts_mappings_in_use) {
  client user = connect({.max_entries = 1});
  make("used");
  const segment used = user.open("used");
  const gpushm::generation written = written_in(used);
  for (int i = 0; i < 10; ++i) {
    make("other/" + std::to_string(i));
    static_cast<void>(user.open("other/" + std::to_string(i)));
    EXPECT_EQ(written_in(used), written);
  }
  EXPECT_EQ(user.cache_stats().evictions, 9U);
  EXPECT_EQ(user.cache_stats().kept_entries, 1U);
  EXPECT_EQ(user.cache_stats().used_entries, 1U);
  EXPECT_EQ(user.open("used").data(), used.data());
}

TEST_F(caching, default_limit_is_256_entries) {
  std::vector<std::string> names;
  for (int i = 0; i < 300; ++i) {
    names.push_back("w/" + std::to_string(i));
    make(names.back());
  }
  {
    client user = connect({.max_bytes = unlimited, .max_entries = unlimited});
    for (const auto& result : user.open_many(names)) {
      ASSERT_TRUE(result) << result.failure()->what();
    }
    EXPECT_EQ(user.cache_stats().kept_entries, 300U);
    EXPECT_EQ(user.cache_stats().evictions, 0U);
    EXPECT_EQ(chunk_mappings(), 300U);
    EXPECT_TRUE(is_hit(user, "w/0"));
  }
  EXPECT_EQ(chunk_mappings(), 0U);
  client user = connect();
  static_cast<void>(user.open_many(names));
  EXPECT_EQ(user.cache_stats().kept_entries, default_cache_entries);
  EXPECT_EQ(user.cache_stats().evictions, 44U);
  EXPECT_EQ(chunk_mappings(), 256U);
}

TEST_F(caching, limit_0_keeps_nothing) {
  make("w");
  for (const cache_options& none : {cache_options{.max_bytes = 0}, {.max_entries = 0}}) {
    client user = connect(none);
    segment first = user.open("w");
    EXPECT_EQ(user.open("w").data(), first.data()) << "mappings in use are still shared";
    EXPECT_EQ(user.cache_stats().hits, 1U);
    first.reset();
    EXPECT_EQ(user.cache_stats().kept_entries, 0U);
    EXPECT_EQ(chunk_mappings(), 0U);
    EXPECT_TRUE(leases_become("w", 0));
    EXPECT_FALSE(is_hit(user, "w"));
  }
}

TEST_F(caching, reads_limits_from_environment) {
  for (int i = 0; i < 5; ++i) {
    make("w/" + std::to_string(i), 256U << 10U);
  }
  const auto kept = [&](const cache_options& options) {
    client user = connect(options);
    for (int i = 0; i < 5; ++i) {
      static_cast<void>(user.open("w/" + std::to_string(i)));
    }
    return user.cache_stats().kept_entries;
  };
  EXPECT_EQ(kept({}), 5U);
  {
    const variable bytes("GPUSHM_CACHE_MAX_BYTES", "1MiB");
    EXPECT_EQ(kept({}), 4U);
    EXPECT_EQ(kept({.max_entries = 3}), 3U);
    EXPECT_EQ(kept({.max_bytes = 2U << 20U}), 5U) << "the program's options take precedence";
    EXPECT_EQ(kept({.max_bytes = 0}), 0U);
    const variable entries("GPUSHM_CACHE_MAX_ENTRIES", "2");
    EXPECT_EQ(kept({}), 2U);
    EXPECT_EQ(kept({.max_entries = 10}), 4U);
  }
  {
    const variable bytes("GPUSHM_CACHE_MAX_BYTES", "unlimited");
    EXPECT_EQ(kept({}), 5U);
    const variable entries("GPUSHM_CACHE_MAX_ENTRIES", "unlimited");
    EXPECT_EQ(kept({}), 5U);
  }
  {
    const variable bytes("GPUSHM_CACHE_MAX_BYTES", "0");
    EXPECT_EQ(kept({}), 0U);
  }
  {
    const variable bytes("GPUSHM_CACHE_MAX_BYTES", "");  // as if unset
    EXPECT_EQ(kept({}), 5U);
  }
}

TEST_F(caching, refuses_invalid_environment) {
  for (const char* name : {"GPUSHM_CACHE_MAX_BYTES", "GPUSHM_CACHE_MAX_ENTRIES"}) {
    for (const char* text : {"many",
                             "-1",
                             "1.5XB",
                             " ",
                             "Unlimited",
                             "0x10",
                             "16 GiB less",
                             "18446744073709551616",
                             "99999999999GiB"}) {
      const variable set(name, text);
      EXPECT_EQ(error_of([&] { static_cast<void>(connect()); }, errc::invalid_argument),
                "connect \"" + std::string(name) + "\": " + text +
                    " is neither a number nor \"unlimited\" (set it to a number of bytes, to a "
                    "size such as 16GiB, or to unlimited; or unset it)");
      EXPECT_NO_THROW(static_cast<void>(connect({.max_bytes = 1, .max_entries = 1})))
          << "the variable is not read";
    }
  }
}

TEST_F(caching, trim_empties_it) {
  make("a");
  make("b");
  const auto written = make("used");
  client user = connect();
  const segment used = user.open("used");
  static_cast<void>(user.open("a"));
  static_cast<void>(user.open("b"));
  EXPECT_EQ(chunk_mappings(), 3U);
  user.trim();
  EXPECT_EQ(user.cache_stats().kept_entries, 0U);
  EXPECT_EQ(user.cache_stats().kept_bytes, 0U);
  EXPECT_EQ(user.cache_stats().used_entries, 1U);
  EXPECT_EQ(user.cache_stats().evictions, 0U) << "not because of a limit";
  EXPECT_EQ(chunk_mappings(), 1U);
  EXPECT_EQ(written_in(used), written);
  EXPECT_TRUE(leases_become("a", 0));
  EXPECT_TRUE(leases_become("b", 0));
  user.trim();
  EXPECT_TRUE(is_hit(user, "used"));
  EXPECT_FALSE(is_hit(user, "a"));
}

// ---- removal ----

TEST_F(caching, drops_removed_segment_without_a_call) {
  make("a");
  make("b");
  client user = connect();
  static_cast<void>(user.open("a"));
  static_cast<void>(user.open("b"));
  EXPECT_EQ(chunk_mappings(), 2U);
  EXPECT_EQ(chunk_descriptors(), 2U) << "the broker's own";
  producer_->remove("a");
  EXPECT_TRUE(eventually([] { return chunk_mappings() == 1; }, 4s));
  EXPECT_TRUE(eventually([] { return chunk_descriptors() == 1; }, 4s)) << "its lease remains";
  EXPECT_EQ(user.cache_stats().kept_entries, 1U);
  EXPECT_EQ(user.cache_stats().evictions, 0U);
  EXPECT_TRUE(is_hit(user, "b"));
  EXPECT_EQ(error_of([&] { static_cast<void>(user.open("a")); }, errc::no_such_segment),
            "open \"a\": no such segment in domain default (`gpushm ls` lists segments; an open "
            "with a timeout waits for the name)");
}

TEST_F(caching, removed_segment_stays_while_used) {
  const auto written = make("w");
  client user = connect();
  segment first = user.open("w");
  segment second = user.open("w");
  producer_->remove("w");
  EXPECT_EQ(first.state(), segment_state::removed);
  EXPECT_EQ(user.cache_stats().used_entries, 1U);
  first.reset();
  EXPECT_EQ(written_in(second), written);
  EXPECT_EQ(second.state(), segment_state::removed);
  EXPECT_EQ(chunk_mappings(), 1U);
  EXPECT_EQ(chunk_descriptors(), 1U) << "it may fetch chunks";
  second.reset();
  EXPECT_EQ(chunk_mappings(), 0U) << "it can no longer be opened";
  EXPECT_TRUE(eventually([] { return chunk_descriptors() == 0; }, 4s));
  EXPECT_EQ(user.cache_stats().kept_entries, 0U);
}

TEST_F(caching, recreated_name_opens_new_memory) {
  client user = connect();
  gpushm::generation former = 0;
  for (int i = 0; i < 50; ++i) {
    const auto generation = make("w");
    EXPECT_GT(generation, former);
    segment opened = user.open("w");
    EXPECT_EQ(opened.generation(), generation);
    EXPECT_EQ(written_in(opened), generation);
    EXPECT_EQ(user.open("w").generation(), generation);
    former = generation;
    if (i % 2 != 0) {  // unused when it is removed, else in use
      opened.reset();
    }
    producer_->remove("w");
  }
  EXPECT_TRUE(eventually([] { return chunk_mappings() == 0; }, 4s));
}

TEST_F(caching, restarts_empty_with_next_broker) {
  make("w");
  make("used");
  client user = connect();
  static_cast<void>(user.open("w"));
  segment used = user.open("used");
  const auto old_epoch = used.epoch();
  EXPECT_EQ(chunk_mappings(), 2U);
  broker_.reset();
  EXPECT_TRUE(eventually([] { return chunk_mappings() == 1; }, 4s)) << "without a call";
  EXPECT_EQ(user.cache_stats().kept_entries, 0U);
  EXPECT_EQ(used.state(), segment_state::broker_gone);
  EXPECT_EQ(error_of([&] { static_cast<void>(user.open("used")); }, errc::broker_unreachable),
            "connect \"" + options_.socket_path +
                "\": the socket does not exist (start a broker with `gpushm serve`, or mount the "
                "domain's "
                "directory)")
      << "the name may refer to another segment";

  broker_.emplace(broker::start(options_));
  const auto written = make("used");
  segment next = user.open("used");
  EXPECT_NE(next.epoch(), old_epoch);
  EXPECT_EQ(next.epoch(), broker_->epoch());
  EXPECT_EQ(written_in(next), written);
  EXPECT_NE(next.data(), used.data());
  EXPECT_TRUE(is_hit(user, "used"));
  next.reset();
  EXPECT_EQ(user.cache_stats().kept_entries, 1U);
  used.reset();
  EXPECT_EQ(user.cache_stats().kept_entries, 1U) << "the old broker's is not cached";
  EXPECT_EQ(chunk_mappings(), 1U);
  producer_->remove("used");  // the next broker's events arrive as well
  EXPECT_TRUE(eventually([] { return chunk_mappings() == 0; }, 4s));
}

// ---- threads ----

TEST_F(caching, concurrent_opens_import_once) {
  constexpr int threads = 10;
  for (int round = 0; round < 20; ++round) {
    const std::string name = "w/" + std::to_string(round);
    const auto written = make(name, 16 * page);
    client user = connect();
    std::barrier start(threads);
    std::vector<segment> all(threads);
    std::vector<std::jthread> running;
    for (int i = 0; i < threads; ++i) {
      running.emplace_back([&, i] {
        start.arrive_and_wait();
        all[static_cast<std::size_t>(i)] = user.open(name);
      });
    }
    running.clear();
    for (const segment& each : all) {
      EXPECT_EQ(each.data(), all.front().data());
      EXPECT_EQ(written_in(each), written);
    }
    EXPECT_EQ(chunk_mappings(), 1U);
    EXPECT_EQ(user.cache_stats().used_entries, 1U);
    EXPECT_EQ(user.cache_stats().hits + user.cache_stats().misses, 10U);
    EXPECT_EQ(leases(name), 1U);
    all.clear();
    EXPECT_EQ(user.cache_stats().kept_entries, 1U);
    user.trim();
    EXPECT_EQ(chunk_mappings(), 0U);
    EXPECT_TRUE(leases_become(name, 0)) << "every grant is returned";
  }
}

TEST_F(caching, consistent_under_concurrent_create_and_remove) {
  client user = connect({.max_entries = 2});
  make("steady");
  std::atomic<bool> over{false};
  std::atomic<std::uint64_t> opened{0};
  std::atomic<gpushm::generation> removed{0};  // upper bound of removed generations of "w"
  std::vector<std::jthread> readers;
  for (int i = 0; i < 8; ++i) {
    readers.emplace_back([&, i] {
      const std::string other = "steady";
      while (!over) {
        const gpushm::generation removed_before = removed;
        if (const auto segment = user.try_open(i % 4 == 3 ? other : "w")) {
          EXPECT_EQ(written_in(*segment), segment->generation());
          if (segment->name() == "w") {
            EXPECT_GT(segment->generation(), removed_before)
                << "it was removed before it was opened";
          }
          ++opened;
        }
        if (i == 0) {
          user.trim();
        }
      }
    });
  }
  const auto end = std::chrono::steady_clock::now() + 2s;
  std::uint64_t created = 0;
  while (std::chrono::steady_clock::now() < end) {
    const auto generation = make("w");
    ++created;
    const auto before = opened.load();
    EXPECT_TRUE(eventually([&] { return opened > before + 8; }, 10s));
    producer_->remove("w");
    removed = generation;
  }
  over = true;
  readers.clear();
  EXPECT_GT(created, 20U);
  EXPECT_GT(user.cache_stats().hits, created);
  EXPECT_TRUE(eventually([] { return chunk_mappings() <= 1; }, 4s)) << "steady's";
  user.trim();
  EXPECT_EQ(user.cache_stats().kept_entries, 0U);
  EXPECT_EQ(user.cache_stats().used_entries, 0U);
  EXPECT_EQ(chunk_mappings(), 0U);
  EXPECT_TRUE(leases_become("steady", 0));
}

// ---- other processes ----

TEST_F(caching, hit_makes_no_system_call) {
  if (gpushm_testing::timeout_factor != 1) {
    GTEST_SKIP() << "sanitizers add threads and memory";
  }
  make("kept");
  make("used");
  const auto result = [&] {
    gpushm_testing::traced_process victim(
        {.argv = {gpushm_testing::own_program("import_cache_victim"), options_.socket_path}}, 0);
    auto ended = victim.wait_end(60s);
    EXPECT_EQ(ended.wait_status, 0) << victim.output().all_output();
    EXPECT_NE(victim.output().text(gpushm_testing::stream::out).find("hits 2000\n"),
              std::string::npos)
        << victim.output().all_output();
    return ended;
  }();
  EXPECT_TRUE(result.began);
  EXPECT_TRUE(result.ended);
  EXPECT_EQ(result.calls, 0U);
  EXPECT_TRUE(leases_become("kept", 0));
}

TEST_F(caching, not_used_in_forked_child) {
  if (gpushm::base::under_thread_sanitizer) {
    GTEST_SKIP() << "ThreadSanitizer does not support fork in a program with threads";
  }
  const auto written = make("w");
  make("kept");
  client user = connect();
  segment used = user.open("w");
  static_cast<void>(user.open("kept"));
  const pid_t child = gpushm_testing::quiet_fork();
  ASSERT_NE(child, -1);
  if (child == 0) {
    int wrong = 0;
    for (const char* name : {"w", "kept"}) {
      try {
        static_cast<void>(user.open(name));
        wrong |= 1;
      } catch (const error& why) {
        wrong |= why.code() == errc::forked ? 0 : 2;
      }
    }
    try {
      user.trim();
      wrong |= 4;
    } catch (const error& why) {
      wrong |= why.code() == errc::forked ? 0 : 8;
    }
    used.reset();
    { const client gone = std::move(user); }
    ::_exit(wrong);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  static_cast<void>(user.list());
  EXPECT_EQ(leases("w"), 1U) << "the child's exit ends no lease here";
  EXPECT_EQ(leases("kept"), 1U);
  EXPECT_EQ(written_in(used), written);
  EXPECT_TRUE(is_hit(user, "kept"));
}

}  // namespace
}  // namespace gpushm
