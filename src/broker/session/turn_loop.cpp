// SPDX-License-Identifier: Apache-2.0
#include "broker/session/turn_loop.hpp"

#include <asio/post.hpp>
#include <chrono>
#include <memory>

namespace gpushm::broker_detail {

namespace {

/// Duration of a round, after which the event loop checks for I/O.
constexpr std::chrono::microseconds round_time{500};

}  // namespace

void turn_loop::post_round() {
  asio::post(io_, [this] {
    round_posted_ = false;
    take_turns();
  });
  round_posted_ = true;
}

/// The event loop takes what has been posted before the events that it finds meanwhile: a round
/// posted at once would be over before what has arrived in the last one has a turn.
void turn_loop::post_round_after_events() {
  asio::post(io_, [this] {
    round_posted_ = false;
    post_round();
  });
  round_posted_ = true;
}

void turn_loop::restart() {
  in_round_ = false;
  if (!turns_.empty() && !round_posted_) {
    post_round_after_events();
  }
}

void turn_loop::request_turn_of(turns::member& member) {
  turns_.request_turn(member);
  if (!in_round_ && !round_posted_) {
    post_round();
  }
}

void turn_loop::take_turns() {
  using clock = std::chrono::steady_clock;
  auto now = clock::now();
  const auto end = now + round_time;
  in_round_ = true;
  while (!turns_.empty() && now < end) {
    turns::member& who = turns_.next();
    const auto began = now;
    // A connection may end in its turn; keep it until its time is charged.
    std::shared_ptr<connection> kept;
    if (who.context() == nullptr) {
      static_cast<const job&>(who).run();
    } else {
      kept = static_cast<connection*>(who.context())->shared_from_this();
      log_.guarded([&] { step_(*kept); });
      request_turn(*kept);
    }
    now = clock::now();
    if (!kept || !kept->closed) {
      turns_.charge(who,
                    static_cast<std::uint64_t>(
                        std::chrono::duration_cast<std::chrono::nanoseconds>(now - began).count()));
    }
  }
  end_round_();
  restart();
}

}  // namespace gpushm::broker_detail
