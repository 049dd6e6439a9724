// SPDX-License-Identifier: Apache-2.0
// Names that refer to a segment by a word of their own, as aliases will: the import cache when such
// a word moves. The broker is scripted, and the test writes the words.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/files/page_size.hpp"
#include "client/lease/lease_table.hpp"
#include "client/segment/client_impl.hpp"
#include "protocol/wire/state_table.hpp"
#include "tests/client/counted_region.hpp"
#include "tests/client/scripted_broker.hpp"
#include "tests/support/process/deadline.hpp"

namespace gpushm::client_detail {
namespace {

using namespace std::chrono_literals;
using gpushm_testing::scaled_timeout;
using gpushm_tests::counted_region;
using gpushm_tests::scripted_broker;

/// The slot of the alias. All slots show their own number as generation at first.
constexpr std::uint32_t alias_slot = 20;

void show(int table,
          std::uint32_t slot,
          gpushm::generation generation,
          wire::slot_state state = wire::slot_state::live) {
  const std::uint64_t word = wire::make_slot_word(generation, state);
  const auto at =
      static_cast<off_t>(wire::state_table_words_offset + std::size_t{slot} * sizeof word);
  ASSERT_EQ(::pwrite(table, &word, sizeof word, at), static_cast<ssize_t>(sizeof word));
}

std::vector<scripted_broker::reply> one(scripted_broker::reply reply) {
  std::vector<scripted_broker::reply> replies;
  replies.push_back(std::move(reply));
  return replies;
}

wire::segment segment_of(const std::string& name, std::uint32_t slot) {
  wire::segment info;
  info.name = name;
  info.generation = slot;
  info.slot = slot;
  info.size_bytes = base::host_page_bytes();
  info.allocated_bytes = base::host_page_bytes();
  info.chunk_count = 1;
  info.lifetime = lifetime::persistent;
  info.published = true;
  return info;
}

class moved_names : public testing::Test {
 protected:
  moved_names()
      : broker_([](const wire::message& asked) {
          return one({{asked.id, wire::done{}}});
        }),
        connection_(connection::establish(broker_.socket_path(), scaled_timeout(20s))) {}
  void TearDown() override {
    cache_->close();
    EXPECT_EQ(cache_->stats().used_entries, 0U);
    EXPECT_EQ(alive_, 0);
  }

  std::shared_ptr<mapping> map(std::uint32_t slot) {
    grant nothing;
    const auto lease =
        cache_->take(connection_, {segment_of("w/" + std::to_string(slot), slot)}, nothing, "open");
    return lease->find_or_map("host", access::read, [&] {
      return std::make_shared<mapping>(
          lease, std::make_shared<counted_region>(alive_), access::read, device_id{});
    });
  }
  /// Opened by the alias, which refers to it now.
  void keep_by_alias(const std::shared_ptr<mapping>& mapping) {
    move(mapping->info().generation);
    cache_->keep(
        mapping, "", lease_table::alias{"w/prod", {alias_slot, mapping->info().generation}});
  }
  void move(gpushm::generation generation) { show(broker_.last_table(), alias_slot, generation); }
  gpushm::generation found(const char* name) {
    auto hit = cache_->find(name, "", access::read);
    const gpushm::generation generation = hit ? hit->info().generation : 0;
    if (hit) {
      cache_->release(std::move(hit));
    }
    return generation;
  }

  scripted_broker broker_;
  std::shared_ptr<connection> connection_;
  std::atomic<int> alive_{0};
  std::shared_ptr<lease_table> cache_ = std::make_shared<lease_table>(cache_bounds{~0ULL, 8});
};

TEST_F(moved_names, are_found_no_longer_and_leave_the_mapping_to_its_users) {
  const auto first = map(5);
  cache_->keep(first, "");
  keep_by_alias(first);
  EXPECT_EQ(found("w/5"), 5U);
  EXPECT_EQ(found("w/prod"), 5U);
  EXPECT_EQ(map(5), first) << "one mapping for all names of a generation";

  move(6);
  EXPECT_EQ(found("w/prod"), 0U);
  EXPECT_EQ(found("w/5"), 5U) << "its own name has not moved";
  const auto second = map(6);
  keep_by_alias(second);
  EXPECT_EQ(found("w/prod"), 6U);
  EXPECT_EQ(found("w/5"), 5U);
  EXPECT_EQ(alive_, 2);

  keep_by_alias(first);  // moved back
  EXPECT_EQ(found("w/prod"), 5U);
  cache_->release(first);
  cache_->release(first);
  cache_->release(first);
  EXPECT_EQ(cache_->stats().kept_entries, 1U);
  cache_->release(second);
  EXPECT_EQ(cache_->stats().kept_entries, 1U) << "no name refers to the second one now";
  EXPECT_EQ(found("w/prod"), 5U);
}

TEST_F(moved_names, end_an_unused_mapping_without_another_name) {
  keep_by_alias(map(5));
  cache_->release(cache_->find("w/prod", "", access::read));
  auto used = cache_->find("w/prod", "", access::read);
  ASSERT_NE(used, nullptr);
  cache_->release(used);
  cache_->release(std::move(used));
  EXPECT_EQ(cache_->stats().kept_entries, 1U);
  move(6);
  EXPECT_EQ(found("w/prod"), 0U);
  EXPECT_EQ(alive_, 0) << "found, and dropped";

  const auto mapped = map(7);
  keep_by_alias(mapped);
  cache_->release(mapped);
  EXPECT_FALSE(cache_->end_lost(7));
  move(8);
  EXPECT_TRUE(cache_->end_lost(7)) << "by an event";
  EXPECT_EQ(cache_->stats().kept_entries, 0U);
}

TEST_F(moved_names, find_nothing_of_a_segment_that_has_ended) {
  const auto mapped = map(5);
  keep_by_alias(mapped);
  show(broker_.last_table(), 5, 5, wire::slot_state::removed);
  EXPECT_EQ(found("w/prod"), 0U) << "the alias's own word is unchanged";
  keep_by_alias(mapped);
  cache_->release(mapped);
  cache_->release(mapped);
  EXPECT_EQ(cache_->stats().kept_entries, 0U);
}

TEST_F(moved_names, are_words_of_one_broker_only) {
  const auto mapped = map(5);
  cache_->keep(mapped, "");
  keep_by_alias(mapped);
  const scripted_broker other([](const wire::message& asked) {
    return one({{asked.id, wire::done{}}});
  });
  const auto next = connection::establish(other.socket_path(), scaled_timeout(20s));
  show(other.last_table(), alias_slot, 5);  // of another name there
  segment_lease::renewal renewal;
  renewal.slot = 5;
  cache_->renew(mapped->shared_lease(), next, renewal);
  EXPECT_EQ(found("w/prod"), 0U);
  EXPECT_EQ(found("w/5"), 5U);
  cache_->release(mapped);
  cache_->release(mapped);
}

// A client may outlive many brokers.
TEST_F(moved_names, lease_keeps_one_connection_after_many_brokers) {
  const auto mapped = map(5);
  cache_->keep(mapped, "");
  segment_lease& lease = *mapped->lease();
  std::vector<std::unique_ptr<scripted_broker>> brokers;
  std::weak_ptr<connection> former = std::exchange(connection_, nullptr);
  const auto go_to_next = [&] {
    brokers.push_back(std::make_unique<scripted_broker>([](const wire::message& asked) {
      return one({{asked.id, wire::done{}}});
    }));
    const auto next = connection::establish(brokers.back()->socket_path(), scaled_timeout(20s));
    segment_lease::renewal renewal;
    renewal.slot = 5;
    cache_->renew(mapped->shared_lease(), next, renewal);
    EXPECT_EQ(lease.broker(), next);
    return std::weak_ptr<connection>(next);
  };
  for (int i = 0; i != 6; ++i) {
    const auto next = go_to_next();
    EXPECT_EQ(lease.connections(), 1U);
    EXPECT_TRUE(former.expired());
    former = next;
    EXPECT_EQ(lease.state(), segment_state::live);
  }
  {
    std::atomic<bool> ended = false;
    std::vector<std::jthread> readers;
    for (int i = 0; i != 3; ++i) {
      readers.emplace_back([&] {
        while (!ended) {
          EXPECT_EQ(lease.state(), segment_state::live);
          EXPECT_NE(lease.where().first, nullptr);
          std::this_thread::yield();
        }
      });
    }
    for (int i = 0; i != 6; ++i) {
      static_cast<void>(go_to_next());
    }
    ended = true;
  }
  static_cast<void>(go_to_next());
  EXPECT_EQ(lease.connections(), 1U) << "also those that were being read";
  EXPECT_EQ(found("w/5"), 5U);
  cache_->release(mapped);
}

TEST(moved_name, is_seen_by_a_cached_open) {
  std::atomic<std::uint32_t> target{5};
  std::atomic<int> opens{0};
  const scripted_broker broker([&](const wire::message& asked) {
    const auto* const open = std::get_if<wire::open>(&asked.body);
    if (open == nullptr) {
      return one({{asked.id, wire::done{}}});
    }
    ++opens;
    wire::opened body;
    body.segment = segment_of(open->name, target);
    body.chunk_bytes = {base::host_page_bytes()};
    scripted_broker::reply reply{{asked.id, std::move(body)}};
    reply.descriptors.push_back(scripted_broker::sealed_file(base::host_page_bytes()));
    return one(std::move(reply));
  });
  const auto user = std::make_shared<client_impl>(
      connect_options{.socket_path = broker.socket_path(), .request_limit = scaled_timeout(20s)});
  const auto first = user->open("w/5", {.access = access::read_write});
  *static_cast<char*>(first->region().data()) = 'a';
  {
    auto mapped = user->leases().find("w/5", "", access::read_write);
    ASSERT_NE(mapped, nullptr);
    show(broker.last_table(), alias_slot, 5);
    user->leases().keep(mapped, "", lease_table::alias{"w/prod", {alias_slot, 5}});
    user->leases().release(mapped);
    user->leases().release(mapped);
  }
  EXPECT_EQ(&user->open("w/prod", {.access = access::read_write})->mapped(), &first->mapped());
  EXPECT_EQ(opens, 1);

  target = 6;
  show(broker.last_table(), alias_slot, 6);
  const auto second = user->open("w/prod", {.access = access::read_write});
  EXPECT_EQ(second->info().generation, 6U);
  EXPECT_EQ(*static_cast<char*>(second->region().data()), 0);
  EXPECT_EQ(*static_cast<char*>(first->region().data()), 'a');
  EXPECT_EQ(&user->open("w/5", {.access = access::read_write})->mapped(), &first->mapped());
  EXPECT_EQ(opens, 2);
}

}  // namespace
}  // namespace gpushm::client_detail
