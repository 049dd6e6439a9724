// SPDX-License-Identifier: Apache-2.0
// Prefetching: what a client requests before an open, and when it drops it. Client and broker in
// one process, host memory.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/files/fork_guard.hpp"
#include "client/segment/client_impl.hpp"
#include "client/segment/segment_impl.hpp"
#include "client/timeline/timeline_impl.hpp"
#include "gpushm/broker.hpp"
#include "gpushm/gpushm.hpp"
#include "tests/client/scripted_broker.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/proc_counters.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm::client_detail {
namespace {

using namespace std::chrono_literals;
using gpushm_testing::count_descriptors;
using gpushm_testing::count_mappings;
using gpushm_testing::deadline_after;
using gpushm_testing::eventually;
using gpushm_testing::scaled_timeout;
using gpushm_testing::total;
using gpushm_tests::scripted_broker;

constexpr std::uint64_t page = 4096;

class prefetching : public testing::Test {
 protected:
  prefetching() : mappings_(count_of_mappings()) {
    static_cast<void>(base::life_pipe());  // opened once per process, by the first connection
    descriptors_ = total(count_descriptors(::getpid()));
    options_.socket_path = directory_ / "socket";
    broker_.emplace(broker::start(options_));
    producer_.emplace(client::connect({.socket_path = options_.socket_path}));
    user_ = connect();
  }
  void TearDown() override {
    leased_.clear();
    user_.reset();
    producer_.reset();
    broker_.reset();
    EXPECT_EQ(count_of_mappings(), mappings_);
    EXPECT_EQ(total(count_descriptors(::getpid())), descriptors_);
  }
  static std::size_t count_of_mappings() { return count_mappings(::getpid(), "memfd:gpushm"); }

  [[nodiscard]] std::shared_ptr<client_impl> connect(const cache_options& cache = {}) const {
    return std::make_shared<client_impl>(connect_options{
        .socket_path = options_.socket_path, .request_limit = scaled_timeout(10s), .cache = cache});
  }
  [[nodiscard]] std::shared_ptr<client_impl> connect_with(std::vector<std::string> names) const {
    return std::make_shared<client_impl>(connect_options{.socket_path = options_.socket_path,
                                                         .request_limit = scaled_timeout(10s),
                                                         .prefetch = std::move(names)});
  }
  /// Creates a segment without users here, whose first bytes are its generation.
  gpushm::generation make(const std::string& name,
                          lifetime kept = lifetime::persistent,
                          std::uint64_t chunks = 1) {
    segment created = producer_->create(
        name,
        {.size_bytes = chunks * page, .device = "host", .lifetime = kept, .chunk_bytes = page});
    const gpushm::generation generation = created.generation();
    std::memcpy(created.mutable_data(), &generation, sizeof generation);
    created.publish();
    if (kept == lifetime::leased) {
      leased_.push_back(std::move(created));
    }
    return generation;
  }
  std::size_t prefetch(const std::string& prefix) {
    return user_->prefetch(prefix, deadline_after(20s));
  }
  static gpushm::generation written_in(const gpushm_segment& opened) {
    gpushm::generation found = 0;
    std::memcpy(&found, opened.region().data(), sizeof found);
    return found;
  }
  /// `call` opens without a request to the broker.
  template <typename Call>
  void expect_silent(Call&& call) {
    const auto before = broker_->statistics().opens;
    call();
    EXPECT_EQ(broker_->statistics().opens, before);
  }
  std::uint32_t leases(const std::string& name) { return producer_->stat(name).leases; }
  [[nodiscard]] bool leases_become(const std::string& name, std::uint32_t count) {
    return eventually([&] { return leases(name) == count; }, 20s);
  }

  gpushm_testing::temp_dir directory_;
  std::size_t descriptors_ = 0;
  std::size_t mappings_;
  broker_options options_;
  std::optional<broker> broker_;
  std::optional<client> producer_;
  std::vector<segment> leased_;
  std::shared_ptr<client_impl> user_;
};

TEST_F(prefetching, next_open_sends_no_request) {
  std::vector<gpushm::generation> created;
  for (const char* name : {"w/0", "w/1", "w/2"}) {
    created.push_back(make(name, lifetime::persistent, 3));
  }
  make("other");
  EXPECT_EQ(prefetch("w/"), 3U);
  EXPECT_EQ(leases("w/0"), 1U) << "prefetching takes a lease";
  EXPECT_EQ(leases("other"), 0U);
  EXPECT_EQ(count_of_mappings(), mappings_ + 3) << "state tables of two clients and their broker";
  expect_silent([&] {
    for (std::size_t i = 0; i < created.size(); ++i) {
      const auto opened = user_->open("w/" + std::to_string(i), {});
      EXPECT_EQ(opened->info().generation, created[i]);
      EXPECT_EQ(opened->info().size_bytes, 3 * page);
      EXPECT_EQ(written_in(*opened), created[i]);
      EXPECT_EQ(leases("w/" + std::to_string(i)), 1U);
    }
    static_cast<void>(user_->open("w/0", {}));  // becomes cached
  });
  EXPECT_EQ(user_->leases().prefetched_count(), 0U);
  EXPECT_EQ(user_->leases().stats().kept_entries, 3U);
  user_->leases().trim();
  EXPECT_TRUE(leases_become("w/0", 0));
  static_cast<void>(user_->open("w/0", {}));
}

TEST_F(prefetching, serves_every_kind_of_open_and_access) {
  const auto generation = make("a");
  make("b");
  make("c");
  EXPECT_EQ(prefetch(""), 3U);
  expect_silent([&] {
    const auto opened = user_->open("a", {.access = access::read_write});
    EXPECT_EQ(opened->mapped().access(), access::read_write);
    std::memset(opened->region().data(), 1, page);
    EXPECT_NE(user_->try_open("b", {}), nullptr);
    const std::vector<std::string> names{"c"};
    EXPECT_NE(user_->open_many(names, {}).at(0).opened, nullptr);
  });
  // Its descriptors were used: another mapping of it sends a request.
  const auto before = broker_->statistics().opens;
  static_cast<void>(user_->open_generation("a", generation, {}));
  EXPECT_EQ(broker_->statistics().opens, before + 1);
}

TEST_F(prefetching, skips_uncacheable_and_existing_segments) {
  make("leased", lifetime::leased);
  const segment unpublished = producer_->create(
      "unpublished", {.size_bytes = page, .device = "host", .lifetime = lifetime::persistent});
  make("many", lifetime::persistent, 254);
  make("most", lifetime::persistent, 253);
  make("mapped");
  make("kept");
  const auto mapped = user_->open("mapped", {});
  static_cast<void>(user_->open("kept", {}));
  EXPECT_EQ(prefetch(""), 1U);
  EXPECT_EQ(leases("most"), 1U);
  EXPECT_EQ(prefetch(""), 0U) << "already prefetched";
  expect_silent([&] { static_cast<void>(user_->open("most", {})); });
}

TEST_F(prefetching, trim_releases_unopened_segments) {
  make("a");
  make("b");
  EXPECT_EQ(prefetch(""), 2U);
  subscription events = producer_->subscribe("");
  user_->leases().trim();
  EXPECT_EQ(user_->leases().prefetched_count(), 0U);
  EXPECT_TRUE(leases_become("a", 0));
  EXPECT_EQ(events.next(50ms), std::nullopt) << "it was never used";
  EXPECT_EQ(prefetch(""), 2U);
  user_.reset();
  EXPECT_TRUE(leases_become("a", 0));
  EXPECT_TRUE(leases_become("b", 0));
}

TEST_F(prefetching, drops_removed_segments_without_a_call) {
  make("a");
  make("b");
  EXPECT_EQ(prefetch(""), 2U);
  const auto bytes = [&] { return broker_->statistics().allocated_bytes; };
  EXPECT_EQ(bytes(), 2 * page);
  producer_->remove("a");
  EXPECT_TRUE(eventually([&] { return bytes() == page; }, 20s));
  EXPECT_TRUE(eventually([&] { return user_->leases().prefetched_count() == 1; }, 20s));
  EXPECT_EQ(user_->try_open("a", {}), nullptr);
  const auto again = make("a");
  EXPECT_EQ(written_in(*user_->open("a", {})), again);
}

TEST_F(prefetching, not_used_for_other_size_or_generation) {
  const auto generation = make("a");
  EXPECT_EQ(prefetch(""), 1U);
  const auto code_of = [](auto&& call) {
    try {
      call();
    } catch (const error& why) {
      return why.code();
    }
    return errc{};
  };
  EXPECT_EQ(code_of([&] { static_cast<void>(user_->open("a", {.expected_size_bytes = 1})); }),
            errc::size_mismatch);
  EXPECT_EQ(code_of([&] { static_cast<void>(user_->open_generation("a", generation + 1, {})); }),
            errc::gone_or_replaced);
  expect_silent([&] { static_cast<void>(user_->open_generation("a", generation, {})); });
}

TEST_F(prefetching, restarts_empty_with_next_broker) {
  make("a");
  EXPECT_EQ(prefetch(""), 1U);
  producer_.reset();
  broker_.reset();
  EXPECT_TRUE(eventually([&] { return user_->leases().prefetched_count() == 0; }, 20s));
  broker_.emplace(broker::start(options_));
  producer_.emplace(client::connect({.socket_path = options_.socket_path}));
  const auto again = make("a");
  EXPECT_EQ(prefetch(""), 1U);
  expect_silent([&] { EXPECT_EQ(written_in(*user_->open("a", {})), again); });
}

TEST_F(prefetching, cache_limit_0_keeps_nothing) {
  make("a");
  user_ = connect({.max_entries = 0});
  EXPECT_EQ(prefetch(""), 0U);
  EXPECT_EQ(leases("a"), 0U);
  static_cast<void>(user_->open("a", {}));
}

TEST_F(prefetching, uses_at_most_a_quarter_of_descriptors) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlim_t before = std::exchange(limit.rlim_cur, 1'200);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  user_ = connect();
  for (int i = 0; i < 40; ++i) {
    make("w/" + std::to_string(i), lifetime::persistent, 10);
  }
  EXPECT_EQ(prefetch(""), 30U);
  EXPECT_EQ(prefetch(""), 0U);
  for (int i = 0; i < 40; ++i) {
    static_cast<void>(user_->open("w/" + std::to_string(i), {}));
  }
  user_->leases().trim();
  EXPECT_EQ(prefetch(""), 30U);
  limit.rlim_cur = before;
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
}

TEST_F(prefetching, prefetches_at_most_4096_segments) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  constexpr std::size_t count = lease_table::max_prefetched + 4;
  if (limit.rlim_max < 4 * count) {
    GTEST_SKIP() << "too few descriptors";
  }
  const rlim_t before = std::exchange(limit.rlim_cur, std::min<rlim_t>(limit.rlim_max, 65'536));
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  user_.reset();
  producer_.reset();
  broker_.reset();
  broker_.emplace(broker::start(options_));  // reads that limit
  producer_.emplace(client::connect({.socket_path = options_.socket_path}));
  user_ = connect({.max_entries = 0xFFFF'FFFF});
  std::vector<std::string> names;
  for (std::size_t i = 0; i < count; ++i) {
    names.push_back("w/" + std::to_string(i));
    make(names.back());
  }
  EXPECT_EQ(prefetch("w/"), lease_table::max_prefetched);
  EXPECT_EQ(prefetch("w/"), 0U);
  const auto opens = broker_->statistics().opens;
  std::size_t opened = 0;
  for (const auto& each : user_->open_many(names, {})) {
    opened += each.opened != nullptr ? 1U : 0U;
  }
  EXPECT_EQ(opened, count);
  EXPECT_EQ(broker_->statistics().opens, opens + count - lease_table::max_prefetched);
  user_.reset();
  limit.rlim_cur = before;
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
}

TEST_F(prefetching, consistent_under_concurrent_create_and_remove) {
  constexpr int names = 8;
  std::atomic<bool> over{false};
  std::jthread producing([&] {
    std::mt19937 random(1);
    while (!over) {
      const std::string name = "w/" + std::to_string(random() % names);
      try {
        make(name);
      } catch (const error& why) {
        EXPECT_EQ(why.code(), errc::already_exists);
        producer_->remove(name);
      }
    }
  });
  std::atomic<int> opened{0};
  {
    std::vector<std::jthread> users;
    for (unsigned thread = 0; thread < 4; ++thread) {
      users.emplace_back([&, thread] {
        std::mt19937 random(thread);
        const auto end = std::chrono::steady_clock::now() + 500ms;
        while (std::chrono::steady_clock::now() < end) {
          if (random() % 4 == 0) {
            static_cast<void>(prefetch("w/"));
          }
          if (random() % 32 == 0) {
            user_->leases().trim();
          }
          if (const auto got = user_->try_open("w/" + std::to_string(random() % names), {})) {
            EXPECT_EQ(written_in(*got), got->info().generation);
            ++opened;
          }
        }
      });
    }
  }
  over = true;
  producing.join();
  EXPECT_GT(opened, 0);
  user_->leases().trim();
  for (const segment_info& each : producer_->list()) {
    EXPECT_TRUE(leases_become(each.name, 0)) << each.name;
  }
}

TEST_F(prefetching, not_used_in_forked_child) {
  make("a");
  EXPECT_EQ(prefetch(""), 1U);
  const pid_t child = ::fork();
  if (child == 0) {
    bool refused = false;
    try {
      static_cast<void>(user_->prefetch("", deadline_after(5s)));
    } catch (const error& why) {
      refused = why.code() == errc::forked;
    }
    const bool closed = total(count_descriptors(::getpid()), "memfd:gpushm-chunk") == 0;
    ::_exit(refused && closed ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  expect_silent([&] { static_cast<void>(user_->open("a", {})); });
}

// ---- names that are requested with the connection ----

TEST_F(prefetching, names_come_with_the_connection) {
  const auto generation = make("a", lifetime::persistent, 3);
  make("b");
  make("leased", lifetime::leased);
  user_ = connect_with({"missing", "a", "leased"});
  EXPECT_EQ(user_->leases().prefetched_count(), 2U);
  EXPECT_EQ(leases("a"), 1U);
  EXPECT_EQ(leases("b"), 0U) << "it was not asked for";
  EXPECT_EQ(leases("leased"), 2U) << "also its creator's";
  expect_silent([&] {
    EXPECT_EQ(written_in(*user_->open("a", {})), generation);
    static_cast<void>(user_->open("leased", {}));
  });
  EXPECT_TRUE(leases_become("leased", 1));
  const auto later = make("missing");
  EXPECT_EQ(written_in(*user_->open("missing", {})), later);
}

TEST_F(prefetching, names_of_several_requests_come_with_the_connection) {
  std::vector<std::string> names;
  for (int i = 0; i < 130; ++i) {
    names.push_back("w/" + std::to_string(i));
    make(names.back());
  }
  user_ = connect_with(names);
  EXPECT_EQ(user_->leases().prefetched_count(), names.size());
  expect_silent([&] {
    for (const auto& each : user_->open_many(names, {})) {
      EXPECT_NE(each.opened, nullptr);
    }
  });
}

TEST_F(prefetching, named_leased_segment_is_kept_until_trim) {
  make("leased", lifetime::leased);
  user_ = connect_with({"leased"});
  leased_.clear();  // its creator's
  EXPECT_TRUE(leases_become("leased", 1));
  user_->leases().trim();
  EXPECT_TRUE(eventually([&] { return broker_->statistics().segments == 0; }, 20s));
}

TEST_F(prefetching, names_of_other_things_than_memory_are_left_out) {
  const timeline line = timeline::create(*producer_, "line");
  make("a");
  user_ = connect_with({"line", "a"});
  EXPECT_EQ(user_->leases().prefetched_count(), 1U);
  EXPECT_NE(std::make_shared<timelines>(user_)->open("line", {}), nullptr);
}

TEST_F(prefetching, cache_limit_0_requests_no_names) {
  make("a");
  user_ = std::make_shared<client_impl>(connect_options{
      .socket_path = options_.socket_path, .cache = {.max_entries = 0}, .prefetch = {"a"}});
  EXPECT_EQ(leases("a"), 0U);
  static_cast<void>(user_->open("a", {}));
}

TEST_F(prefetching, refuses_names_that_are_not_valid) {
  try {
    static_cast<void>(connect_with({"a", ""}));
    FAIL() << "accepted";
  } catch (const error& why) {
    EXPECT_EQ(why.code(), errc::invalid_argument);
  }
}

// ---- malformed brokers ----

wire::segment listed(const std::string& name, gpushm::generation generation) {
  wire::segment segment;
  segment.name = name;
  segment.generation = generation;
  segment.slot = static_cast<std::uint32_t>(generation);
  segment.size_bytes = page;
  segment.allocated_bytes = page;
  segment.chunk_count = 1;
  segment.lifetime = lifetime::persistent;
  segment.published = true;
  return segment;
}

/// Prefetches from a broker that lists "a" and "b", and replies to opens with `reply`.
std::pair<std::optional<errc>, std::size_t> prefetched_from(
    const std::function<std::vector<scripted_broker::reply>(const wire::message&)>& reply) {
  scripted_broker broker([&](const wire::message& asked) {
    if (std::holds_alternative<wire::open_many>(asked.body)) {
      return reply(asked);
    }
    std::vector<scripted_broker::reply> replies;
    replies.push_back({{asked.id, wire::listing{{listed("a", 5), listed("b", 6)}, false}}});
    return replies;
  });
  const auto user = std::make_shared<client_impl>(
      connect_options{.socket_path = broker.socket_path(), .request_limit = scaled_timeout(10s)});
  try {
    const std::size_t count = user->prefetch("", deadline_after(10s));
    EXPECT_EQ(count, user->leases().prefetched_count());
    return {std::nullopt, count};
  } catch (const error& why) {
    return {why.code(), user->leases().prefetched_count()};
  }
}

scripted_broker::reply grant_of(std::uint64_t id, std::uint32_t index, wire::segment segment) {
  scripted_broker::reply reply{{id, wire::opened{index, std::move(segment), {}, {page}}}};
  reply.descriptors.push_back(scripted_broker::sealed_file(page));
  return reply;
}

TEST(prefetching_from_malformed_broker, accepts_only_requested_segments) {
  const auto both = [](const wire::message& asked) {
    std::vector<scripted_broker::reply> replies;
    replies.push_back(grant_of(asked.id, 1, listed("b", 6)));
    replies.push_back(grant_of(asked.id, 0, listed("a", 5)));
    return replies;
  };
  EXPECT_EQ(prefetched_from(both), std::pair(std::optional<errc>(), std::size_t{2}));
  const auto another_kind = [](const wire::message& asked) {
    std::vector<scripted_broker::reply> replies;
    wire::segment leased = listed("a", 7);
    leased.lifetime = lifetime::leased;
    replies.push_back(grant_of(asked.id, 0, leased));
    replies.push_back({{asked.id, wire::failure{1, errc::no_such_segment, "gone", {}}}});
    return replies;
  };
  EXPECT_EQ(prefetched_from(another_kind), std::pair(std::optional<errc>(), std::size_t{0}));
  const auto lost_meanwhile = [](const wire::message& asked) {
    std::vector<scripted_broker::reply> replies;
    wire::segment elsewhere = listed("a", 5);
    elsewhere.slot = 6;  // the slot of another generation
    replies.push_back(grant_of(asked.id, 0, elsewhere));
    replies.push_back(grant_of(asked.id, 1, listed("b", 6)));
    return replies;
  };
  EXPECT_EQ(prefetched_from(lost_meanwhile), std::pair(std::optional<errc>(), std::size_t{1}));
}

TEST(prefetching_from_malformed_broker, refuses_contradictions) {
  const auto wrong = [](std::uint32_t index, const std::string& name) {
    return prefetched_from([=](const wire::message& asked) {
      std::vector<scripted_broker::reply> replies;
      replies.push_back(grant_of(asked.id, 1, listed("b", 6)));
      replies.push_back(grant_of(asked.id, index, listed(name, 5)));
      return replies;
    });
  };
  EXPECT_EQ(wrong(0, "c"), std::pair(std::optional(errc::protocol_error), std::size_t{1}));
  EXPECT_EQ(wrong(2, "a").first, errc::protocol_error);
  EXPECT_EQ(wrong(~0U, "a").first, errc::protocol_error);
}

TEST(prefetching_from_malformed_broker, ends_on_endless_list) {
  std::atomic<int> pages{0};
  scripted_broker broker([&](const wire::message& asked) {
    ++pages;
    std::vector<scripted_broker::reply> replies;
    wire::segment leased = listed("a", 5);
    leased.lifetime = lifetime::leased;
    replies.push_back({{asked.id, wire::listing{{leased}, true}}});
    return replies;
  });
  const auto user = std::make_shared<client_impl>(
      connect_options{.socket_path = broker.socket_path(), .request_limit = scaled_timeout(10s)});
  EXPECT_THROW(static_cast<void>(user->prefetch("", deadline_after(10s))), error);
  EXPECT_EQ(pages, 2);
}

// ---- names that are requested with the connection, and a broker that does not grant them ----

/// Connects, with "a" and "b" requested; the error, and the number of segments kept.
std::pair<std::optional<errc>, std::size_t> connected_with_names(scripted_broker& broker) {
  try {
    const auto user =
        std::make_shared<client_impl>(connect_options{.socket_path = broker.socket_path(),
                                                      .request_limit = scaled_timeout(10s),
                                                      .prefetch = {"a", "b"}});
    return {std::nullopt, user->leases().prefetched_count()};
  } catch (const error& why) {
    return {why.code(), 0};
  }
}

TEST(names_with_the_connection, are_requested_again_from_a_successor) {
  const auto grants = [](const wire::message& asked) {
    std::vector<scripted_broker::reply> replies;
    replies.push_back(grant_of(asked.id, 1, listed("b", 6)));
    replies.push_back(grant_of(asked.id, 0, listed("a", 5)));
    return replies;
  };
  scripted_broker broker(grants, false, 2);
  EXPECT_EQ(connected_with_names(broker), std::pair(std::optional<errc>(), std::size_t{2}));
}

TEST(names_with_the_connection, are_no_error_if_the_broker_ends) {
  scripted_broker broker([](const wire::message& asked) {
    std::vector<scripted_broker::reply> replies;
    replies.push_back(grant_of(asked.id, 1, listed("b", 6)));
    replies.back().then_close = true;
    return replies;
  });
  EXPECT_EQ(connected_with_names(broker), std::pair(std::optional<errc>(), std::size_t{0}));
}

TEST(names_with_the_connection, are_refused_with_contradictions) {
  scripted_broker broker([](const wire::message& asked) {
    std::vector<scripted_broker::reply> replies;
    replies.push_back(grant_of(asked.id, 0, listed("c", 6)));
    replies.push_back(grant_of(asked.id, 1, listed("b", 6)));
    return replies;
  });
  EXPECT_EQ(connected_with_names(broker).first, errc::protocol_error);
}

TEST(names_with_the_connection, are_not_waited_for_at_exporters) {
  std::atomic<bool> cancelled{false};
  std::atomic<bool> released{false};
  scripted_broker broker(
      [&](const wire::message& asked) {
        std::vector<scripted_broker::reply> replies;
        if (const auto* const cancel = std::get_if<wire::cancel>(&asked.body)) {
          cancelled = cancel->request != 0;
          replies.push_back({{asked.id, wire::too_late{}}});
          auto late = grant_of(cancel->request, 0, listed("a", 5));
          late.late = true;
          replies.push_back(std::move(late));
        } else if (std::holds_alternative<wire::open_many>(asked.body)) {
          replies.push_back({{asked.id, wire::waiting{}}});
          replies.push_back(grant_of(asked.id, 1, listed("b", 6)));
        } else if (std::holds_alternative<wire::release>(asked.body)) {
          released = true;
        }
        return replies;
      },
      true);
  const auto user =
      std::make_shared<client_impl>(connect_options{.socket_path = broker.socket_path(),
                                                    .request_limit = scaled_timeout(10s),
                                                    .prefetch = {"a", "b"}});
  EXPECT_EQ(user->leases().prefetched_count(), 1U);
  EXPECT_TRUE(eventually([&] { return cancelled && released; }, 20s));
}

}  // namespace
}  // namespace gpushm::client_detail
