// SPDX-License-Identifier: Apache-2.0
// Order of requests, and their replies.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "tests/broker/hub_world.hpp"
#include "tests/wire/samples.hpp"

namespace gpushm::broker_detail {
namespace {

using namespace testing_world;

class hub_conversation : public hub_test {
 protected:
  /// Requests of that kind that were handled.
  [[nodiscard]] std::uint64_t counted(request_kind kind) const {
    std::uint64_t count = 0;
    for (const request_counts::latency& each : hub_.counted_requests().latencies()) {
      for (const std::uint64_t some : each.counts) {
        count += each.what == kind ? some : 0;
      }
    }
    return count;
  }
};

TEST_F(hub_conversation, starts_with_hello_and_welcome) {
  const auto session = accept();
  EXPECT_FALSE(hub_.find(session)->greeted);
  auto replies = round_trip(session, wire::hello{7, "boot", 1, 2});
  const auto welcome = expect<wire::welcome>(replies);
  EXPECT_EQ(welcome.version, wire::protocol_version) << "the lower of the two";
  EXPECT_EQ(welcome.domain, "default");
  EXPECT_EQ(welcome.epoch, (gpushm::epoch{1, 2, 3}));
  EXPECT_EQ(welcome.max_segments, 65'536U);
  EXPECT_EQ(welcome.max_batch, 253U);
  const arrived& first = replies.at(0);
  ASSERT_TRUE(first.own);
  EXPECT_EQ(first.descriptors, (std::vector<int>{state_table_.get(), first.own->get()}));
  EXPECT_FALSE(first.on_event_lane);
  EXPECT_TRUE(hub_.find(session)->greeted);
  replies.clear();  // closes the lane
  expect_nothing_left();
}

/// Every request of a member has a kind of its own, and its packet is counted once.
TEST_F(hub_conversation, requests_are_counted_by_kind) {
  std::set<std::string_view> names;
  for (const auto& [name, message] : wire::samples::one_of_each_kind()) {
    const request_kind kind = kind_of(message.body);
    const std::uint64_t before = counted(kind);
    const auto session = std::holds_alternative<wire::hello>(message.body) ? accept() : greet();
    const std::uint64_t greeted = counted(kind);
    static_cast<void>(round_trip(session, message.body));
    EXPECT_EQ(counted(kind), greeted + 1) << name;
    EXPECT_GE(greeted, before);
    if (kind == request_kind::other) {
      EXPECT_TRUE(out_.is_dropped(session)) << name << " has no kind";
    } else {
      EXPECT_TRUE(names.insert(to_string(kind)).second) << name;
    }
  }
  EXPECT_EQ(names.size(), request_kinds - 2) << "all but connect and other";
  expect_nothing_left();
}

TEST_F(hub_conversation, refusals_are_counted_by_kind_and_code) {
  const auto session = greet();
  static_cast<void>(round_trip(session, wire::remove{"nothing", 0}));
  static_cast<void>(round_trip(session, wire::remove{"nothing", 0}));
  static_cast<void>(round_trip(session, wire::open{"nothing", 0, 0, 0}));
  static_cast<void>(round_trip(session, wire::open_many{{"a", "b"}, 0, 0}));
  receive(session, std::vector<std::byte>(7));
  std::map<std::pair<request_kind, errc>, std::uint64_t> seen;
  for (const request_counts::refusal& each : hub_.counted_requests().refusals()) {
    seen[{each.what, each.code}] = each.count;
  }
  EXPECT_EQ(seen,
            (std::map<std::pair<request_kind, errc>, std::uint64_t>{
                {{request_kind::remove, errc::no_such_segment}, 2},
                {{request_kind::open, errc::no_such_segment}, 3},
                {{request_kind::other, errc::protocol_error}, 1}}));
  expect_nothing_left();
}

TEST_F(hub_conversation, older_versions_are_refused) {
  for (std::uint32_t version = 0; version < wire::protocol_version; ++version) {
    const auto session = accept();
    EXPECT_EQ(failure(round_trip(session, wire::hello{version, {}, 0, 0})),
              "unsupported_version: this broker does not support protocol version " +
                  std::to_string(version) + " (update the client)");
    EXPECT_TRUE(out_.is_dropped(session));
  }
  expect_nothing_left();
}

TEST_F(hub_conversation, request_before_hello_ends_it) {
  for (const auto& [name, message] : wire::samples::one_of_each_kind()) {
    if (std::holds_alternative<wire::hello>(message.body)) {
      continue;
    }
    const auto session = accept();
    EXPECT_EQ(failure(round_trip(session, message.body)),
              "protocol_error: request before Hello (use a client of protocol version 2)")
        << name;
    EXPECT_TRUE(out_.is_dropped(session)) << name;
    EXPECT_TRUE(round_trip(session, wire::hello{}).empty())
        << "packets of a dropped session are ignored";
  }
  expect_nothing_left();
}

TEST_F(hub_conversation, second_hello_ends_it) {
  const auto session = greet();
  EXPECT_EQ(failure(round_trip(session, wire::hello{})),
            "protocol_error: second Hello (use a client of protocol version 2)");
  EXPECT_TRUE(out_.is_dropped(session));
  expect_nothing_left();
}

TEST_F(hub_conversation, message_of_a_broker_ends_it) {
  std::size_t kinds = 0;
  for (const auto& [name, message] : wire::samples::one_of_each_kind()) {
    const std::set<std::string> brokers{"welcome",
                                        "reserved",
                                        "opened",
                                        "chunks",
                                        "listing",
                                        "event",
                                        "failure",
                                        "done",
                                        "waiting",
                                        "cancelled",
                                        "too_late",
                                        "subscribed",
                                        "continued"};
    if (brokers.count(name) == 0) {
      continue;
    }
    ++kinds;
    const auto session = greet();
    EXPECT_EQ(failure(round_trip(session, message.body)),
              "protocol_error: a client sent a message that only brokers send (use a client of "
              "protocol version 2)")
        << name;
    EXPECT_TRUE(out_.is_dropped(session)) << name;
  }
  EXPECT_EQ(kinds, 13U);
  expect_nothing_left();
}

TEST_F(hub_conversation, invalid_packet_ends_it) {
  for (const bool greeted : {false, true}) {
    const auto session = greeted ? greet() : accept();
    const std::vector<std::byte> noise(100, std::byte{0x5A});
    receive(session, noise, descriptors(memfd(4096), memfd(1)));
    const auto replies = take(session);
    ASSERT_EQ(replies.size(), 1U);
    EXPECT_EQ(replies[0].message.id, 0U);
    EXPECT_EQ(std::get<wire::failure>(replies[0].message.body).cause,
              "the packet is not a message of this protocol");
    EXPECT_TRUE(out_.is_dropped(session));
  }
  const auto session = greet();
  hub_.receive_truncated(*hub_.find(session));
  const auto replies = take(session);
  ASSERT_EQ(replies.size(), 1U);
  EXPECT_EQ(std::get<wire::failure>(replies[0].message.body).cause,
            "a packet or its descriptors exceed the broker's limits");
  EXPECT_TRUE(out_.is_dropped(session));
  expect_nothing_left();
}

TEST_F(hub_conversation, unexpected_descriptors_are_refused) {
  const auto session = greet();
  const auto created = make(session, "kv");
  const std::vector<wire::body> bodies{wire::reserve{"x", 1, 1, {}, 1, {}, {}},
                                       wire::publish{created, {}},
                                       wire::open{"kv", 0, 0},
                                       wire::open_many{{"kv"}, 0, 0},
                                       wire::fetch_chunks{created, 0},
                                       wire::release{created, 1},
                                       wire::remove{"kv"},
                                       wire::list{},
                                       wire::stat{"kv"},
                                       wire::subscribe{""},
                                       wire::unsubscribe{1},
                                       wire::bye{}};
  for (const wire::body& body : bodies) {
    EXPECT_EQ(
        failure(round_trip(session, body, descriptors(memfd(4096)))),
        "wrong_descriptor_count: 1 descriptors received with a message that announces 0 (send "
        "exactly the announced descriptors)")
        << body.index();
  }
  EXPECT_FALSE(out_.is_dropped(session));
  expect<wire::listing>(round_trip(session, wire::stat{"kv"}));
  expect_nothing_left();
}

TEST_F(hub_conversation, replies_go_to_one_session_only) {
  const auto first = greet();
  const auto second = greet();
  make(first, "kv");
  receive(first, std::vector<std::byte>(3));
  EXPECT_TRUE(take(second).empty());
  EXPECT_FALSE(out_.is_dropped(second));
  hub_.hang_up(first);
  EXPECT_EQ(failure(round_trip(second, wire::stat{"kv"})),
            "no_such_segment: no such segment in domain default (`gpushm ls` lists segments)");
  expect_nothing_left();
}

class hub_with_few_descriptors : public hub_test {
 protected:
  hub_with_few_descriptors() : hub_test({.max_descriptors = 5, .descriptors_per_session = 2}) {}
};

TEST_F(hub_with_few_descriptors, excess_connection_is_refused_without_effect) {
  greet();
  greet();
  try {
    accept();
    ADD_FAILURE() << "accepted";
  } catch (const error& why) {
    EXPECT_EQ(why.code(), errc::too_many_descriptors);
    EXPECT_EQ(why.cause(), "no room for 2 more descriptors: 4 of 5 are in use in this domain");
  }
  hub_.hang_up(1);
  greet();
  expect_nothing_left();
}

TEST_F(hub_conversation, death_and_goodbye_differ) {
  const auto watcher = greet({301, 2000, true});
  const auto subscription = send_request(watcher, wire::subscribe{"kv"});
  const auto begun = expect<wire::subscribed>(take(watcher));
  EXPECT_TRUE(begun.segments.empty() && !begun.more);
  for (const bool goodbye : {true, false}) {
    const auto creator = greet();
    make(creator, "kv", lifetime::persistent);
    take(watcher);
    if (goodbye) {
      EXPECT_TRUE(round_trip(creator, wire::bye{}).empty());
    }
    hub_.hang_up(creator);
    const auto received = take(watcher);
    ASSERT_EQ(received.size(), goodbye ? 0U : 1U);
    if (!goodbye) {
      EXPECT_EQ(received[0].message.id, subscription);
      EXPECT_EQ(received[0].subscription, subscription);
      const auto event = std::get<wire::event>(received[0].message.body);
      EXPECT_EQ(event.kind, event_kind::peer_died);
      EXPECT_EQ(event.name, "kv");
      EXPECT_EQ(event.peer_pid, 101);
    }
    expect<wire::done>(round_trip(greet({401, broker_uid, true}), wire::remove{"kv"}));
    take(watcher);
  }
  expect<wire::done>(round_trip(watcher, wire::unsubscribe{subscription}));
  make(greet(), "kv");
  EXPECT_TRUE(take(watcher).empty());
  expect_nothing_left();
}

TEST_F(hub_conversation, waiting_opens_get_replies_before_the_publisher) {
  const auto creator = greet();
  const auto reader = greet({201, 2000, true});
  const auto first = send_request(reader, wire::open{"kv", 0, 100});
  const auto many = send_request(reader, wire::open_many{{"other", "kv"}, 0, 50});
  const auto sent = take(reader);
  ASSERT_EQ(sent.size(), 3U);
  for (const arrived& each : sent) {
    EXPECT_TRUE(std::holds_alternative<wire::waiting>(each.message.body) && !each.on_event_lane);
  }
  EXPECT_EQ(hub_.next_deadline(), now_ + std::chrono::milliseconds(50));
  const auto created = make(creator, "kv");
  auto replies = take(reader);
  ASSERT_EQ(replies.size(), 2U);
  EXPECT_TRUE(replies[0].on_event_lane && replies[1].on_event_lane);
  EXPECT_EQ(replies[0].message.id, first);
  EXPECT_EQ(std::get<wire::opened>(replies[0].message.body).index, 0U);
  EXPECT_EQ(replies[1].message.id, many);
  EXPECT_EQ(std::get<wire::opened>(replies[1].message.body).index, 1U);
  EXPECT_EQ(std::get<wire::opened>(replies[1].message.body).segment.generation, created);
  replies.clear();  // closes their descriptors
  hub_.tick(now_ + std::chrono::milliseconds(50));
  const auto late = take(reader);
  ASSERT_EQ(late.size(), 1U);
  EXPECT_TRUE(late[0].on_event_lane);
  EXPECT_EQ(late[0].message.id, many);
  EXPECT_EQ(std::get<wire::failure>(late[0].message.body).index, 0U);
  EXPECT_EQ(std::get<wire::failure>(late[0].message.body).code, errc::no_such_segment);
  expect_nothing_left();
}

/// Of several requests with one id. What has begun is not too late.
TEST_F(hub_conversation, cancel_of_thousands_of_opens_takes_several_turns) {
  constexpr std::size_t each_request = 900;
  constexpr std::size_t each_turn = 1'024;
  constexpr std::size_t opens = 3 * each_request;
  const auto reader = greet({201, 2000, true});
  session& session = *hub_.find(reader);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < each_request; ++i) {
    names.push_back("name " + std::to_string(i));
  }
  for (const bool has_reply_meanwhile : {false, true}) {
    const std::uint64_t many = ++request_;
    for (std::size_t count = 0; count < opens; count += each_request) {
      hub_.receive(session,
                   wire::encode({many, wire::open_many{names, 0, 100}}),
                   succession::not_kept({}),
                   now_);
      while (session.rest) {
        hub_.resume(session);
      }
    }
    take(reader);
    ASSERT_EQ(hub_.domain().waiting_count(), opens);
    const auto cancel = wire::encode({++request_, wire::cancel{many}});
    EXPECT_FALSE(hub_.receive(session, cancel, succession::not_kept({}), now_));
    EXPECT_EQ(hub_.domain().waiting_count(), opens - each_turn);
    EXPECT_TRUE(take(reader).empty());
    if (has_reply_meanwhile) {
      while (hub_.domain().waiting_count() != 0) {
        hub_.tick(now_ + std::chrono::milliseconds(100));
      }
      take(reader);
    } else {
      EXPECT_FALSE(hub_.receive(session, cancel, succession::not_kept({}), now_));
    }
    EXPECT_TRUE(hub_.receive(session, cancel, succession::not_kept({}), now_));
    expect<wire::cancelled>(take(reader));
    EXPECT_EQ(hub_.domain().waiting_count(), 0U);
  }
}

TEST_F(hub_conversation, cancel_ends_a_waiting_open_or_is_too_late) {
  const auto creator = greet();
  const auto reader = greet({201, 2000, true});
  const auto waits = send_request(reader, wire::open{"kv", 0, 100});
  const auto both = send_request(reader, wire::open_many{{"kv", "other"}, 0, 100});
  take(reader);
  expect<wire::cancelled>(round_trip(reader, wire::cancel{waits}));
  EXPECT_EQ(expect<wire::too_late>(round_trip(reader, wire::cancel{waits})).after, 0U)
      << "cancelled already";
  EXPECT_EQ(expect<wire::too_late>(round_trip(creator, wire::cancel{both})).after, 0U)
      << "of another session";
  make(creator, "kv");
  const auto replies = take(reader);
  ASSERT_EQ(replies.size(), 1U) << "the first no longer waits";
  EXPECT_EQ(replies[0].message.id, both);
  expect<wire::cancelled>(round_trip(reader, wire::cancel{both}));
  hub_.tick(now_ + std::chrono::milliseconds(100));
  EXPECT_TRUE(take(reader).empty());
  EXPECT_EQ(expect<wire::too_late>(round_trip(reader, wire::cancel{both})).after, 1U)
      << "number of packets on the event lane";
  take(reader);
  EXPECT_EQ(hub_.domain().waiting_count(), 0U);
}

TEST_F(hub_conversation, subscription_starts_with_a_list) {
  const auto creator = greet();
  make(creator, "kv/a");
  make(creator, "kv/b");
  make(creator, "other");
  const auto watcher = greet({301, 2000, true});
  const auto begun = expect<wire::subscribed>(round_trip(watcher, wire::subscribe{"kv/"}));
  ASSERT_EQ(begun.segments.size(), 2U);
  EXPECT_EQ(begun.segments[0].name, "kv/a");
  EXPECT_EQ(begun.segments[1].name, "kv/b");
  EXPECT_FALSE(begun.more);
  EXPECT_EQ(begun.after, 0U);
  make(creator, "kv/c");
  EXPECT_EQ(take(watcher).size(), 1U);
  const auto again = expect<wire::subscribed>(round_trip(watcher, wire::subscribe{"kv/"}));
  EXPECT_EQ(again.segments.size(), 3U);
  EXPECT_EQ(again.after, 1U) << "after the event of kv/c";
}

TEST_F(hub_conversation, makes_no_event_that_would_be_lost) {
  const auto creator = greet();
  const auto watcher = greet({301, 2000, true});
  const auto subscription = send_request(watcher, wire::subscribe{""});
  take(watcher);
  out_.full.insert(watcher);
  make(creator, "kv/a");
  EXPECT_TRUE(take(watcher).empty());
  EXPECT_EQ(out_.lost_events, (std::vector{std::pair(watcher, subscription)}));
  out_.full.clear();
  make(creator, "kv/b");
  EXPECT_EQ(take(watcher).size(), 1U);
  EXPECT_EQ(out_.lost_events.size(), 1U);
}

TEST_F(hub_conversation, message_on_the_wrong_lane_ends_it) {
  for (const auto& [name, message] : wire::samples::one_of_each_kind()) {
    const auto session = greet();
    const auto wrong =
        wire::is_sent_on_event_lane(message.body) ? lane_kind::requests : lane_kind::events;
    receive(session, wire::encode(message), {}, wrong);
    const auto replies = take(session);
    ASSERT_EQ(replies.size(), 1U) << name;
    EXPECT_EQ(std::get<wire::failure>(replies[0].message.body).cause,
              "message received on the wrong lane")
        << name;
    EXPECT_TRUE(out_.is_dropped(session)) << name;
  }
  expect_nothing_left();
}

TEST_F(hub_conversation, list_is_split_into_pages) {
  constexpr std::size_t count = 1'500;
  const auto creator = greet();
  const auto long_name = [](std::size_t i) {
    auto name = std::to_string(i);
    return std::string(4 - name.size(), '0') + name + std::string(251, 'n');
  };
  for (std::size_t i = 0; i < count; ++i) {
    // Not published, so that one descriptor per segment is enough; the creator sees them.
    reserve(creator, long_name(i));
    take(creator);
  }
  std::vector<std::string> names;
  std::size_t pages = 0;
  bool more = true;
  while (more) {
    ASSERT_LT(++pages, 100U);
    const auto page = expect<wire::listing>(
        round_trip(creator, wire::list{"", names.empty() ? "" : names.back()}));
    ASSERT_FALSE(page.segments.empty());
    for (const wire::segment& info : page.segments) {
      names.push_back(info.name);
    }
    more = page.more;
  }
  EXPECT_GT(pages, 5U);
  ASSERT_EQ(names.size(), count);
  for (std::size_t i = 0; i < count; ++i) {
    EXPECT_EQ(names[i], long_name(i));
  }
  EXPECT_TRUE(expect<wire::listing>(round_trip(greet(), wire::list{})).segments.empty());
  expect_nothing_left();
}

TEST_F(hub_conversation, stat_describes_a_segment) {
  const auto creator = greet();
  const auto created = make(creator, "kv", lifetime::persistent);
  const auto reader = greet({201, 2000, true});
  expect<wire::opened>(round_trip(reader, wire::open{"kv", 4096, 0}));
  hub_.hang_up(creator);
  const auto page = expect<wire::listing>(round_trip(reader, wire::stat{"kv"}));
  ASSERT_EQ(page.segments.size(), 1U);
  const wire::segment& info = page.segments[0];
  EXPECT_EQ(info.name, "kv");
  EXPECT_EQ(info.generation, created);
  EXPECT_EQ(info.size_bytes, 4096U);
  EXPECT_EQ(info.allocated_bytes, 4096U);
  EXPECT_EQ(info.chunk_count, 1U);
  EXPECT_EQ(info.lifetime, lifetime::persistent);
  EXPECT_TRUE(info.published);
  EXPECT_EQ(info.state, segment_state::exporter_gone) << "as the state table shows it";
  EXPECT_EQ(info.leases, 1U);
  EXPECT_EQ(info.creator_uid, 1000U);
  EXPECT_EQ(info.creator_pid, 101);
  EXPECT_FALSE(info.creator_alive);
  EXPECT_EQ(slots_.at(info.slot).second, segment_state::exporter_gone);
  expect<wire::done>(round_trip(greet({401, broker_uid, true}), wire::remove{"kv"}));
  expect_nothing_left();
}

// A client that reads no replies keeps them from being opened.
TEST_F(hub_conversation, names_that_wait_for_their_turn_are_charged) {
  const auto reader = greet();
  const auto used = [&] { return hub_.domain().budget().used(core::resource::memory_bytes); };
  const std::uint64_t before = used();
  constexpr std::size_t count = 600;
  constexpr std::size_t name_bytes = 200;
  const wire::open_many request{
      std::vector<std::string>(count, std::string(name_bytes, 'n')), 0, 0};
  session& from = *hub_.find(reader);
  hub_.receive(
      from, wire::encode({1, request}), succession::not_kept({}), now_, 0, lane_kind::requests);
  ASSERT_TRUE(from.rest);
  EXPECT_GE(used(), before + count * name_bytes);
  while (from.rest) {
    hub_.resume(from);
  }
  EXPECT_EQ(take(reader).size(), count);
  EXPECT_EQ(used(), before);
  expect_nothing_left();
}

class hub_without_memory : public hub_test {
 protected:
  static core::limits bounds() {
    core::limits result;
    result.max_memory_bytes = 50'000;
    return result;
  }
  hub_without_memory() : hub_test(bounds()) {}
};

TEST_F(hub_without_memory, each_name_that_cannot_wait_is_refused) {
  const auto reader = greet();
  constexpr std::size_t count = 300;
  const auto replies = round_trip(
      reader, wire::open_many{std::vector<std::string>(count, std::string(200, 'n')), 0, 0});
  ASSERT_EQ(replies.size(), count);
  for (std::uint32_t index = 0; index < count; ++index) {
    const auto& why = std::get<wire::failure>(replies[index].message.body);
    EXPECT_EQ(why.index, index);
    EXPECT_EQ(why.code, errc::out_of_memory);
  }
  expect_nothing_left();
}

}  // namespace
}  // namespace gpushm::broker_detail
