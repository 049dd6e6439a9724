// SPDX-License-Identifier: Apache-2.0
#include "broker/hub/turns.hpp"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <vector>

namespace gpushm::broker_detail {
namespace {

/// Gives turns to members that always request one, and records how much time each gets.
class race {
 public:
  void add(const std::string& principal, std::uint64_t cost) {
    runners_.push_back(std::make_unique<runner>());
    runners_.back()->cost = cost;
    turns_.join(runners_.back()->turn, principal, runners_.back().get());
    turns_.request_turn(runners_.back()->turn);
  }
  void run(std::uint64_t until) {
    for (std::uint64_t now = 0; now < until;) {
      turns::member& who = turns_.next();
      auto& of = *static_cast<runner*>(who.context());
      of.got += of.cost;
      now += of.cost;
      turns_.charge(who, of.cost);
      turns_.request_turn(who);
    }
  }
  [[nodiscard]] std::uint64_t got(std::size_t which) const { return runners_[which]->got; }

 private:
  struct runner {
    turns::member turn;
    std::uint64_t cost = 0;
    std::uint64_t got = 0;
  };
  turns turns_;
  std::vector<std::unique_ptr<runner>> runners_;
};

TEST(broker_turns, principals_get_equal_time) {
  race changes;
  changes.add("a", 10);
  changes.add("b", 1'000);
  changes.run(1'000'000);
  EXPECT_NEAR(static_cast<double>(changes.got(0)), 500'000, 5'000);
  EXPECT_NEAR(static_cast<double>(changes.got(1)), 500'000, 5'000);
}

TEST(broker_turns, members_of_one_principal_share_its_time) {
  race changes;
  changes.add("good", 10);
  for (int i = 0; i < 100; ++i) {
    changes.add("many", 10);
  }
  changes.run(1'000'000);
  EXPECT_NEAR(static_cast<double>(changes.got(0)), 500'000, 5'000);
  for (std::size_t i = 1; i <= 100; ++i) {
    EXPECT_NEAR(static_cast<double>(changes.got(i)), 5'000, 100);
  }
}

TEST(broker_turns, idle_member_runs_next_and_saves_no_time) {
  turns order;
  turns::member flood;
  turns::member calm;
  order.join(flood, "a", &flood);
  order.join(calm, "b", &calm);
  for (int i = 0; i < 1'000; ++i) {
    order.request_turn(flood);
    order.charge(order.next(), 100);
  }
  order.request_turn(flood);
  order.request_turn(calm);
  EXPECT_EQ(&order.next(), &calm);
  order.charge(calm, 100);
  order.request_turn(calm);
  // From here on they alternate: idle time is not saved.
  int turns_of_calm = 0;
  for (int i = 0; i < 100; ++i) {
    turns::member& who = order.next();
    turns_of_calm += &who == &calm ? 1 : 0;
    order.charge(who, 100);
    order.request_turn(who);
  }
  EXPECT_NEAR(turns_of_calm, 50, 1);
}

TEST(broker_turns, members_may_leave_at_any_time) {
  turns order;
  auto first = std::make_unique<turns::member>();
  turns::member second;
  order.join(*first, "a", first.get());
  order.join(second, "a", &second);
  order.request_turn(*first);
  order.request_turn(second);
  first.reset();
  EXPECT_EQ(&order.next(), &second);
  EXPECT_TRUE(order.empty());
  order.request_turn(second);
  order.leave(second);
  order.leave(second);
  order.request_turn(second);
  EXPECT_TRUE(order.empty());
}

}  // namespace
}  // namespace gpushm::broker_detail
