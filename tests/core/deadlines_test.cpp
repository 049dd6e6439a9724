// SPDX-License-Identifier: Apache-2.0
#include "core/deadlines.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "core/saved_state.hpp"
#include "tests/core/world.hpp"

namespace gpushm::core {
namespace {

using namespace testing_world;

using entry = deadline_queue::entry;
using kind = deadline_queue::kind;

TEST(deadline_queue, is_in_order_of_time_kind_and_number) {
  const std::vector<entry> ordered = {{at_ms(1), kind::confirmation, 9},
                                      {at_ms(2), kind::waiting, 3},
                                      {at_ms(2), kind::waiting, 4},
                                      {at_ms(2), kind::confirmation, 1},
                                      {at_ms(3), kind::waiting, 1}};
  deadline_queue queue;
  EXPECT_EQ(queue.next(), std::nullopt);
  EXPECT_EQ(queue.due(time_point::max()), std::nullopt);
  for (const std::size_t i : {3U, 0U, 4U, 2U, 1U}) {
    queue.add(ordered[i]);
  }
  for (const entry& each : ordered) {
    EXPECT_EQ(queue.next(), each.when);
    EXPECT_EQ(queue.due(each.when - time_point::duration(1)), std::nullopt);
    EXPECT_EQ(queue.due(each.when), each);
    queue.erase(each);
  }
  EXPECT_EQ(queue.size(), 0U);
}

TEST(deadline_queue, erases_only_what_is_named) {
  deadline_queue queue;
  queue.add({at_ms(5), kind::waiting, 1});
  queue.add({at_ms(5), kind::waiting, 1});  // the same
  queue.erase({at_ms(5), kind::confirmation, 1});
  queue.erase({at_ms(6), kind::waiting, 1});
  queue.erase({at_ms(5), kind::waiting, 2});
  EXPECT_EQ(queue.size(), 1U);
  queue.erase({at_ms(5), kind::waiting, 1});
  EXPECT_EQ(queue.size(), 0U);
}

TEST(deadline_queue, has_what_was_added_and_not_erased_after_random_operations) {
  std::mt19937 random(1);
  const auto pick = [&](std::uint32_t below) {
    return static_cast<std::uint32_t>(random() % below);
  };
  deadline_queue queue;
  std::vector<entry> expected;
  std::uint64_t number = 0;
  constexpr int steps = 20'000;
  constexpr std::uint32_t times = 50;  // many at the same
  for (int i = 0; i < steps; ++i) {
    if (pick(2) == 0) {
      const entry some{at_ms(static_cast<int>(pick(times))),
                       pick(2) == 0 ? kind::waiting : kind::confirmation,
                       ++number};
      queue.add(some);
      expected.push_back(some);
    } else if (!expected.empty()) {
      std::swap(expected[pick(static_cast<std::uint32_t>(expected.size()))], expected.back());
      queue.erase(expected.back());
      expected.pop_back();
    }
    ASSERT_EQ(queue.size(), expected.size());
    const auto first = std::min_element(expected.begin(), expected.end());
    ASSERT_EQ(queue.due(time_point::max()),
              first == expected.end() ? std::nullopt : std::optional(*first));
  }
  std::sort(expected.begin(), expected.end());
  for (const entry& each : expected) {
    ASSERT_EQ(queue.due(each.when), each);
    queue.erase(each);
  }
  EXPECT_EQ(queue.next(), std::nullopt);
}

class core_deadlines : public testing::Test {
 protected:
  core_deadlines() {
    domain_.connect(exporter, {10, 1'000, true});
    domain_.connect(member, {20, 1'001, true});
    reservation wanted = host_segment("shared");
    wanted.backend = backend::cuda_ipc;
    wanted.device.kind = device_kind::gpu;
    wanted.chunk_count = 0;
    wanted.ticket = {std::byte{1}};
    domain_.publish(exporter, domain_.reserve(exporter, wanted).generation, {});
    seen_.settle();
  }

  /// Waits for its name until `deadline_ms`.
  void wait_until(int deadline_ms) {
    domain_.open(member, {++request_, 0, "missing", 0, at_ms(deadline_ms)});
    seen_.settle();
  }
  /// Waits for the exporter, which has a second to reply.
  void ask_at(int asked_ms) {
    domain_.open(member, {++request_, 0, "shared", 0, std::nullopt, at_ms(asked_ms)});
    seen_.settle();
  }
  /// Ticks of `domain` until nothing is due, and the requests that were answered meanwhile.
  static std::vector<std::vector<std::uint64_t>> ticks(domain& domain, time_point now) {
    std::vector<std::vector<std::uint64_t>> result;
    domain.pending().clear();
    while (domain.next_deadline() && *domain.next_deadline() <= now) {
      domain.at(now).tick();
      result.emplace_back();
      for (const open_reply& each : domain.pending().replies) {
        result.back().push_back(each.request);
      }
      domain.pending().clear();
      if (result.back().empty()) {
        ADD_FAILURE() << "a turn that did nothing";
        break;
      }
    }
    return result;
  }

  static constexpr session_id exporter = 1;
  static constexpr session_id member = 2;
  static constexpr limits bounds{.confirm_timeout = std::chrono::seconds(1), .names_changes = true};
  domain domain_{"default", 42, bounds};
  recorder seen_{domain_};
  std::uint64_t request_ = 0;
};

TEST_F(core_deadlines, opens_of_all_kinds_fail_in_order_of_time) {
  wait_until(1'030);  // 1
  ask_at(20);         // 2: at 1,020
  wait_until(1'010);  // 3
  ask_at(0);          // 4: at 1,000
  EXPECT_EQ(domain_.next_deadline(), at_ms(1'000));
  EXPECT_TRUE(ticks(domain_, at_ms(999)).empty());

  saved_state from = domain_.save();
  domain successor("default", 42, bounds, nullptr, from);
  for (domain* const each : {&domain_, &successor}) {
    EXPECT_EQ(ticks(*each, at_ms(5'000)), (std::vector<std::vector<std::uint64_t>>{{4, 3, 2, 1}}));
    EXPECT_EQ(each->next_deadline(), std::nullopt);
  }
}

TEST_F(core_deadlines, what_is_due_fails_in_bounded_turns) {
  constexpr std::size_t each_turn = 64;
  constexpr std::size_t count = 200;
  std::vector<std::uint64_t> in_order;
  for (std::size_t i = 0; i < count / 2; ++i) {
    wait_until(1'000 + static_cast<int>(i));
    in_order.push_back(request_);
    ask_at(static_cast<int>(i));
    in_order.push_back(request_);
  }
  std::vector<std::uint64_t> replied;
  for (const auto& turn : ticks(domain_, at_ms(5'000))) {
    EXPECT_LE(turn.size(), each_turn);
    replied.insert(replied.end(), turn.begin(), turn.end());
  }
  EXPECT_EQ(replied, in_order);
  EXPECT_EQ(domain_.waiting_count(), 0U);
}

TEST_F(core_deadlines, time_does_not_go_back) {
  EXPECT_EQ(domain_.at(at_ms(10)).at(at_ms(5)).now(), at_ms(10));
  wait_until(20);
  domain_.at(at_ms(20));
  domain_.at(at_ms(1)).tick();
  EXPECT_EQ(domain_.next_deadline(), std::nullopt);
}

}  // namespace
}  // namespace gpushm::core
