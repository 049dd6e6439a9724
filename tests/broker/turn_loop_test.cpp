// SPDX-License-Identifier: Apache-2.0
#include "broker/session/turn_loop.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "protocol/transport/packet_socket.hpp"
#include "tests/client/connection_world.hpp"

namespace gpushm::broker_detail {
namespace {

/// Processes whose uid is unknown, as those of another user namespace are.
class processes_that_are_not_vouched_for : public testing_world::connection_test {
 protected:
  connection& connect_as(const core::principal& principal) {
    connection& connection = connect();
    loop_.leave(connection);
    connection.principal = principal;
    loop_.join(connection);
    connection.requests.readable = true;
    all_.push_back(&connection);
    return connection;
  }
  /// Each has more to do until the turns that a test looks at have been taken.
  void step(connection& member) override {
    const auto begin = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() == begin) {
    }
    turns_.push_back(member.principal.key);
    if (turns_.size() == looked_at) {
      for (connection* const each : all_) {
        each->requests.readable = false;
      }
    }
  }

  static constexpr std::size_t looked_at = 3;
  std::vector<connection*> all_;
  std::vector<std::string> turns_;
};

TEST_F(processes_that_are_not_vouched_for, share_one_turn) {
  for (int i = 0; i < 8; ++i) {
    connect_as({"process " + std::to_string(i), false});
  }
  connect_as({"uid 1", true});
  connect_as({"uid 2", true});
  for (connection* const each : all_) {
    loop_.request_turn(*each);
  }
  poll();
  ASSERT_GE(turns_.size(), looked_at);
  // Nothing has been charged to the three parties before their first turns.
  const auto is_forked = [](const std::string& each) { return each.starts_with("process"); };
  EXPECT_EQ(std::count_if(turns_.begin(), turns_.begin() + looked_at, is_forked), 1);
}

/// A connection that always has more to do, and an event that arrives in its turn.
class event_loop_that_is_busy : public testing_world::connection_test {
 protected:
  static constexpr int last_round = 6;
  void step(connection& member) override {
    if (&member == busy_) {
      member.requests.readable = rounds_ < last_round;
      if (rounds_ == 1 && !is_sent_) {
        is_sent_ = true;
        const std::byte one{};
        EXPECT_EQ(transport::send_packet(peers_[other_->number].get(), std::span(&one, 1), {}),
                  transport::send_result::sent);
      }
    } else {
      member.requests.readable = false;
      round_of_other_ = rounds_;
    }
  }

  connection* busy_ = nullptr;
  connection* other_ = nullptr;
  bool is_sent_ = false;
  int round_of_other_ = 0;
};

TEST_F(event_loop_that_is_busy, handles_what_has_arrived_in_a_round_in_the_next_one) {
  busy_ = &connect();
  other_ = &connect();
  other_->requests.events.async_wait(asio::posix::stream_descriptor::wait_read,
                                     [this](asio::error_code code) {
                                       ASSERT_FALSE(code);
                                       other_->requests.readable = true;
                                       loop_.request_turn(*other_);
                                     });
  busy_->requests.readable = true;
  loop_.request_turn(*busy_);
  poll();
  EXPECT_TRUE(is_sent_);
  EXPECT_EQ(round_of_other_, 2);
}

}  // namespace
}  // namespace gpushm::broker_detail
