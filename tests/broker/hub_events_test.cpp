// SPDX-License-Identifier: Apache-2.0
// Events to many subscribers, which take several turns.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/broker/hub_world.hpp"

namespace gpushm::broker_detail {
namespace {

using namespace testing_world;

constexpr std::size_t events_per_turn = 512;
constexpr std::size_t watchers = 20;
constexpr std::uint32_t subscriptions_of_each = 64;
constexpr std::size_t all_subscriptions = watchers * subscriptions_of_each;

/// What a subscriber sees of a name.
using seen = std::pair<event_kind, std::string>;
using seen_in_order = std::vector<seen>;

const seen a_published{event_kind::published, "a"};
const seen a_removed{event_kind::removed, "a"};
const seen b_published{event_kind::published, "b"};

class hub_events : public hub_test {
 protected:
  hub_events() {
    for (std::size_t i = 0; i < watchers; ++i) {
      watchers_.push_back(greet({301, 2000, true}));
      for (std::uint32_t each = 0; each < subscriptions_of_each; ++each) {
        subscriptions_.emplace_back(watchers_.back(), subscribe(watchers_.back()));
      }
    }
  }

  std::uint64_t subscribe(core::session_id watcher) {
    const auto begun = expect<wire::subscribed>(round_trip(watcher, wire::subscribe{""}));
    listed_ = begun.segments.size();
    return request_;
  }
  /// Those queued so far, for all sessions.
  [[nodiscard]] std::size_t events() const {
    std::size_t result = 0;
    for (const auto& [session, count] : out_.events) {
      result += count;
    }
    return result;
  }
  /// Expects that a turn queues no more events than it may.
  template <typename Turn>
  void take_turn(Turn&& turn) {
    const std::size_t before = events();
    turn();
    EXPECT_LE(events(), before + events_per_turn);
  }
  void work_to_the_end() {
    while (hub_.has_work() && !HasFailure()) {
      take_turn([&] { hub_.work(); });
    }
  }
  /// Of each subscription, in order.
  std::map<std::uint64_t, seen_in_order> take_events(core::session_id watcher) {
    std::map<std::uint64_t, seen_in_order> result;
    for (const arrived& each : take(watcher)) {
      const auto& what = std::get<wire::event>(each.message.body);
      result[each.message.id].emplace_back(what.kind, what.name);
    }
    return result;
  }
  void expect_for_all(const seen_in_order& expected) {
    for (const core::session_id watcher : watchers_) {
      const auto got = take_events(watcher);
      EXPECT_EQ(got.size(), subscriptions_of_each) << "session " << watcher;
      for (const auto& [subscription, order] : got) {
        EXPECT_EQ(order, expected) << "subscription " << subscription;
      }
    }
  }

  std::vector<core::session_id> watchers_;
  std::vector<std::pair<core::session_id, std::uint64_t>> subscriptions_;
  std::size_t listed_ = 0;  ///< segments in the last reply of `subscribe`
};

TEST_F(hub_events, to_many_subscribers_take_several_turns) {
  const auto creator = greet();
  take_turn([&] { make(creator, "a"); });
  EXPECT_TRUE(hub_.has_work());
  work_to_the_end();
  EXPECT_EQ(events(), all_subscriptions);
  expect_for_all({a_published});
  take_turn([&] { hub_.work(); });
  EXPECT_EQ(events(), all_subscriptions) << "once";
  expect_nothing_left();
}

TEST_F(hub_events, have_the_order_of_the_changes) {
  const auto creator = greet();
  const auto another = greet({102, 1001, true});
  make(creator, "a");
  make(another, "b");
  send_request(creator, wire::remove{"a", 0});
  work_to_the_end();
  expect_for_all({a_published, b_published, a_removed});
  expect_nothing_left();
}

TEST_F(hub_events, begin_with_the_change_after_the_list) {
  const auto creator = greet();
  make(creator, "a");
  ASSERT_TRUE(hub_.has_work());
  const auto late = greet({401, 2001, true});
  const std::uint64_t subscription = subscribe(late);
  EXPECT_EQ(listed_, 1U) << "its list has what the events in other queues are about";
  make(creator, "b");
  work_to_the_end();
  EXPECT_EQ(take_events(late),
            (std::map<std::uint64_t, seen_in_order>{{subscription, {b_published}}}));
  expect_for_all({a_published, b_published});
  expect_nothing_left();
}

TEST_F(hub_events, reach_all_that_stay_while_others_leave) {
  const auto creator = greet();
  make(creator, "a");
  ASSERT_TRUE(hub_.has_work());
  // The first ones have their events, the last ones do not.
  const auto [early, first] = subscriptions_.front();
  const auto [late, last] = subscriptions_.back();
  auto replies = round_trip(early, wire::unsubscribe{first});  // behind its events
  replies.erase(replies.begin(), replies.end() - 1);
  expect<wire::done>(replies);
  const std::uint64_t again = subscribe(early);
  expect<wire::done>(round_trip(late, wire::unsubscribe{last}));
  hub_.hang_up(watchers_[1]);
  hub_.hang_up(watchers_[watchers - 2]);
  take(watchers_[1]);
  take_turn([&] { hub_.work(); });
  work_to_the_end();
  EXPECT_FALSE(take_events(early).contains(again)) << "its list had it";
  const auto got = take_events(late);
  EXPECT_EQ(got.size(), subscriptions_of_each - 1);
  EXPECT_FALSE(got.contains(last));
  EXPECT_TRUE(take(watchers_[watchers - 2]).empty());
  for (std::size_t i = 2; i < watchers - 2; ++i) {
    const auto whole = take_events(watchers_[i]);
    EXPECT_EQ(whole.size(), subscriptions_of_each);
    for (const auto& [subscription, order] : whole) {
      EXPECT_EQ(order, seen_in_order{a_published});
    }
  }
  expect_nothing_left();
}

TEST_F(hub_events, are_queued_before_the_next_request_of_their_cause) {
  const auto creator = greet();
  const auto another = greet({102, 1001, true});
  make(creator, "a");
  session& cause = *hub_.find(creator);
  EXPECT_NE(cause.waits_for_events, 0U);
  EXPECT_EQ(hub_.find(another)->waits_for_events, 0U);
  while (cause.waits_for_events != 0 && !HasFailure()) {
    take_turn([&] { hub_.resume(cause); });
  }
  EXPECT_EQ(events(), all_subscriptions);
  EXPECT_FALSE(hub_.has_work());
  make(creator, "b");
  work_to_the_end();
  EXPECT_NE(cause.waits_for_events, 0U);
  take_turn([&] { hub_.resume(cause); });
  EXPECT_EQ(cause.waits_for_events, 0U) << "another turn has queued them";
  expect_for_all({a_published, b_published});
  expect_nothing_left();
}

/// The events of a member's request must not wait behind those of as many requests as others have
/// sessions.
TEST_F(hub_events, of_few_changes_are_left_when_a_request_is_received) {
  const auto creator = greet();
  constexpr int many = 8;
  for (int i = 0; i < many; ++i) {
    EXPECT_FALSE(hub_.has_many_events());
    make(creator, "segment " + std::to_string(i));
  }
  for (std::size_t turns = 0; hub_.has_many_events() && turns < watchers; ++turns) {
    take_turn([&] { hub_.send_events(); });
  }
  EXPECT_FALSE(hub_.has_many_events());
  EXPECT_TRUE(hub_.has_work()) << "not all of them";
  work_to_the_end();
  EXPECT_EQ(events(), many * all_subscriptions);
  expect_nothing_left();
}

TEST_F(hub_events, of_an_end_take_several_turns) {
  const auto creator = greet();
  constexpr int segments = 4;
  for (int i = 0; i < segments; ++i) {
    make(creator, "segment " + std::to_string(i));
    work_to_the_end();
  }
  const std::size_t before = events();
  take_turn([&] { hub_.hang_up(creator); });
  while (hub_.has_work() && !HasFailure()) {
    hub_.work();
  }
  EXPECT_GE(events(), before + segments * all_subscriptions);
  EXPECT_EQ(hub_.domain().segment_count(), 0U);
  expect_nothing_left();
}

using hub_readers = hub_test;

TEST_F(hub_readers, of_one_segment_are_notified_in_turns) {
  constexpr std::size_t readers = events_per_turn + 100;
  const auto creator = greet();
  make(creator, "a");
  std::vector<core::session_id> sessions;
  for (std::size_t i = 0; i < readers; ++i) {
    sessions.push_back(greet({301, 2000, true}));
    expect<wire::opened>(round_trip(sessions.back(), wire::open{"a", 0, 0}));
  }
  const auto events = [&] {
    std::size_t result = 0;
    for (const core::session_id each : sessions) {
      result += out_.events[each];
    }
    return result;
  };
  send_request(creator, wire::remove{"a", 0});
  EXPECT_LE(events(), events_per_turn);
  EXPECT_TRUE(hub_.has_work());
  hub_.hang_up(sessions.back());  // before it has its event
  while (hub_.has_work()) {
    hub_.work();
  }
  EXPECT_EQ(events(), readers - 1);
  for (const core::session_id each : sessions) {
    EXPECT_EQ(out_.events[each], each == sessions.back() ? 0U : 1U);
  }
  out_.sent.clear();
  expect_nothing_left();
}

}  // namespace
}  // namespace gpushm::broker_detail
