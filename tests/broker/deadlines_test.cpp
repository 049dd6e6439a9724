// SPDX-License-Identifier: Apache-2.0
#include "broker/session/deadlines.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <string_view>
#include <utility>
#include <vector>

#include "broker/session/member_log.hpp"
#include "tests/client/connection_world.hpp"

namespace gpushm::broker_detail {
namespace {

using std::chrono::seconds;

/// Five seconds for Hello, eight for reading and for the descriptor receiver.
class broker_deadlines : public testing_world::connection_test {
 protected:
  /// Connections closed since the last call, at `when`.
  std::vector<core::session_id> late_at(seconds when) {
    deadlines_.close_late(begin_ + when);
    return std::exchange(closed_, {});
  }
  using closed = std::vector<core::session_id>;

  deadlines deadlines_{io_, hub_, *this, log_, {seconds(5), seconds(8)}};
  deadlines::clock::time_point begin_ = deadlines::clock::now();
};

TEST_F(broker_deadlines, silent_connections_are_closed_in_order) {
  connection& first = connect();
  connection& polite = connect();
  connection& last = connect();
  deadlines_.expect_hello(first, begin_);
  deadlines_.expect_hello(polite, begin_);
  deadlines_.expect_hello(last, begin_ + seconds(2));
  polite.greeted = true;
  EXPECT_EQ(late_at(seconds(4)), closed{});
  EXPECT_EQ(late_at(seconds(5)), closed{first.number});
  EXPECT_EQ(late_at(seconds(6)), closed{});
  EXPECT_EQ(late_at(seconds(7)), closed{last.number});
  EXPECT_EQ(late_at(seconds(1'000)), closed{});
}

TEST_F(broker_deadlines, connection_that_does_not_read_is_closed) {
  connection& slow = connect();
  connection& silent = connect();
  deadlines_.expect_reader(slow.requests, begin_);
  deadlines_.expect_reader(silent.requests, begin_);
  deadlines::reader_resumed(slow.requests, begin_ + seconds(6));
  deadlines_.expect_reader(silent.requests, begin_ + seconds(6));  // does not restart the deadline
  EXPECT_EQ(late_at(seconds(7)), closed{});
  EXPECT_EQ(late_at(seconds(8)), closed{silent.number});
  EXPECT_EQ(late_at(seconds(13)), closed{});
  EXPECT_EQ(late_at(seconds(14)), closed{slow.number});
}

TEST_F(broker_deadlines, connection_that_has_read_everything_is_not_late) {
  connection& connection = connect();
  deadlines_.expect_reader(connection.requests, begin_);
  deadlines_.reader_is_done(connection.requests);
  deadlines::reader_resumed(connection.requests, begin_ + seconds(1));
  EXPECT_EQ(late_at(seconds(100)), closed{});
  deadlines_.expect_reader(connection.requests, begin_ + seconds(100));
  EXPECT_EQ(late_at(seconds(107)), closed{});
  EXPECT_EQ(late_at(seconds(108)), closed{connection.number});
}

TEST_F(broker_deadlines, connection_that_blocks_the_descriptor_receiver_is_closed) {
  connection& stuck = connect();
  connection& quick = connect();
  deadlines_.expect_descriptors(stuck.requests, begin_);
  deadlines_.expect_descriptors(quick.requests, begin_);
  deadlines::descriptors_received(quick.requests);
  EXPECT_EQ(late_at(seconds(7)), closed{});
  EXPECT_EQ(late_at(seconds(8)), closed{stuck.number});
}

TEST_F(broker_deadlines, connection_that_waits_for_a_busy_receiver_is_closed) {
  connection& stuck = connect();
  connection& served = connect();
  deadlines_.expect_receiver(stuck.requests, begin_);
  deadlines_.expect_receiver(served.requests, begin_);
  deadlines_.expect_receiver(stuck.requests, begin_ + seconds(5));  // tries again
  deadlines_.expect_descriptors(served.requests, begin_ + seconds(5));
  EXPECT_EQ(late_at(seconds(7)), closed{});
  EXPECT_EQ(late_at(seconds(8)), closed{stuck.number});
  deadlines::descriptors_received(served.requests);
  EXPECT_EQ(late_at(seconds(100)), closed{});
}

TEST_F(broker_deadlines, deadlines_of_erased_sessions_have_no_effect) {
  connection& gone = connect();
  const core::session_id number = gone.number;
  deadlines_.expect_hello(gone, begin_);
  deadlines_.expect_reader(gone.requests, begin_);
  deadlines_.expect_descriptors(gone.requests, begin_);
  loop_.leave(gone);
  hub_.hang_up(number);
  ASSERT_EQ(hub_.find(number), nullptr);
  EXPECT_EQ(late_at(seconds(100)), closed{});
}

TEST_F(broker_deadlines, time_in_which_the_broker_did_not_run_does_not_count) {
  connection& silent = connect();
  connection& slow = connect();
  connection& sender = connect();
  deadlines_.expect_hello(silent, begin_);
  deadlines_.expect_reader(slow.requests, begin_);
  deadlines_.expect_descriptors(sender.requests, begin_);
  connection& waiter = connect();
  deadlines_.expect_receiver(waiter.requests, begin_);
  deadlines_.check(begin_, begin_ + seconds(100));
  EXPECT_EQ(closed_, closed{});
  EXPECT_EQ(late_at(seconds(104)), closed{});
  EXPECT_EQ(late_at(seconds(105)), closed{silent.number});
  EXPECT_EQ(late_at(seconds(107)), closed{});
  EXPECT_EQ(late_at(seconds(108)), (closed{sender.number, waiter.number, slow.number}));
}

TEST_F(broker_deadlines, a_check_that_comes_late_closes_nothing_at_once) {
  connection& slow = connect();
  deadlines_.expect_reader(slow.requests, begin_);
  deadlines_.check(begin_ + seconds(7), begin_ + seconds(1'000));  // as if it was stopped
  EXPECT_EQ(closed_, closed{});
  const auto in_time = begin_ + seconds(1'001);
  deadlines_.check(in_time, in_time);
  EXPECT_EQ(closed_, closed{slow.number});
}

TEST(broker_line_limit, holds_where_there_is_no_member_log) {
  static std::size_t lines = 0;
  lines = 0;
  gpushm::set_log_sink([](log_level, std::string_view) { ++lines; });
  constexpr std::size_t many = 100'000;
  for (std::size_t i = 0; i != many; ++i) {
    succession::log_about_members(log_level::warning, "a member");
  }
  gpushm::set_log_sink(nullptr);
  EXPECT_GE(lines, succession::line_limit::lines_per_second);
  EXPECT_LT(lines, many / 10);
}

TEST(broker_line_limit, counts_suppressed_lines) {
  succession::line_limit limit;
  const succession::line_limit::clock::time_point begin = succession::line_limit::clock::now();
  for (std::uint64_t i = 0; i < succession::line_limit::lines_per_second; ++i) {
    const auto line = limit.next(begin);
    EXPECT_TRUE(line.may_write);
    EXPECT_EQ(line.suppressed, 0U);
  }
  EXPECT_FALSE(limit.next(begin).may_write);
  EXPECT_FALSE(limit.next(begin + std::chrono::milliseconds(999)).may_write);
  limit.count_suppressed();
  const auto later = limit.next(begin + seconds(1));
  EXPECT_TRUE(later.may_write);
  EXPECT_EQ(later.suppressed, 3U);
  EXPECT_EQ(limit.next(begin + seconds(1)).suppressed, 0U);
}

}  // namespace
}  // namespace gpushm::broker_detail
