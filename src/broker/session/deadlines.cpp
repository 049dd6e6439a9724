// SPDX-License-Identifier: Apache-2.0
#include "broker/session/deadlines.hpp"

#include <optional>
#include <string_view>

namespace gpushm::broker_detail {

namespace {

/// Interval between checks.
constexpr std::chrono::milliseconds housekeeping_period{50};

}  // namespace

void deadlines::expect_hello(connection& connection, clock::time_point now) {
  connection.accepted = now;
  silent_.push_back(connection.number);
  arm();
}

void deadlines::expect_reader(lane& lane, clock::time_point now) {
  if (!lane.blocked_since) {
    stalled_.insert(lane.of.number);
    lane.blocked_since = now;
    arm();
  }
}

void deadlines::reader_resumed(lane& lane, clock::time_point now) noexcept {
  if (lane.blocked_since) {
    lane.blocked_since = now;
  }
}

void deadlines::reader_is_done(lane& read_lane) noexcept {
  read_lane.blocked_since.reset();
  bool other = false;
  read_lane.of.for_each_lane([&](lane& each) { other = other || each.blocked_since; });
  if (!other) {
    stalled_.erase(read_lane.of.number);
  }
}

void deadlines::expect_receiver(lane& lane, clock::time_point now) {
  if (!lane.waits_for_receiver_since) {
    waiting_for_receiver_.insert(lane.of.number);
    lane.waits_for_receiver_since = now;
    arm();
  }
}

void deadlines::expect_descriptors(lane& lane, clock::time_point now) {
  lane.waits_for_receiver_since.reset();
  receiving_descriptors_.insert(lane.of.number);
  lane.receiving_descriptors_since = now;
  arm();
}

connection* deadlines::find(core::session_id number) const noexcept {
  auto* const found = static_cast<connection*>(sessions_.find(number));
  return found == nullptr || found->closed ? nullptr : found;
}

void deadlines::arm() {
  if (is_armed_ || (silent_.empty() && stalled_.empty() && receiving_descriptors_.empty() &&
                    waiting_for_receiver_.empty())) {
    return;
  }
  timer_.expires_after(housekeeping_period);
  timer_.async_wait([this, due = clock::now() + housekeeping_period](asio::error_code code) {
    is_armed_ = false;
    if (code) {
      return;
    }
    log_.guarded([&] { check(due, clock::now()); });
    arm();
  });
  is_armed_ = true;
}

void deadlines::check(clock::time_point due, clock::time_point now) {
  if (now - due > housekeeping_period) {
    forgive(now - due);
  }
  close_late(now);
}

void deadlines::forgive(clock::duration time) noexcept {
  for (const core::session_id each : silent_) {
    if (connection* const of = find(each)) {
      of->accepted += time;
    }
  }
  const auto move = [&](const std::set<core::session_id>& sessions,
                        std::optional<clock::time_point> lane::*since) {
    for (const core::session_id each : sessions) {
      if (connection* const connection = find(each)) {
        connection->for_each_lane([&](lane& lane) {
          if (lane.*since) {
            *(lane.*since) += time;
          }
        });
      }
    }
  };
  move(stalled_, &lane::blocked_since);
  move(receiving_descriptors_, &lane::receiving_descriptors_since);
  move(waiting_for_receiver_, &lane::waits_for_receiver_since);
}

void deadlines::close_late(clock::time_point now) {
  while (!silent_.empty()) {
    connection* const connection = find(silent_.front());
    if (connection != nullptr && !connection->greeted) {
      if (now - connection->accepted < limits_.hello) {
        break;
      }
      ender_.close(*connection);
    }
    silent_.pop_front();
  }
  const auto close_those = [&](std::set<core::session_id>& sessions,
                               std::optional<clock::time_point> lane::*since,
                               std::string_view why) {
    for (auto at = sessions.begin(); at != sessions.end();) {
      connection* const connection = find(*at);
      std::optional<clock::time_point> oldest;
      if (connection != nullptr) {
        connection->for_each_lane([&](lane& each) {
          if (each.*since && (!oldest || *(each.*since) < *oldest)) {
            oldest = each.*since;
          }
        });
      }
      if (!oldest) {
        at = sessions.erase(at);
        continue;
      }
      ++at;
      if (now - *oldest >= limits_.send) {
        log_.dropped(*connection, why);
        ender_.close(*connection);
      }
    }
  };
  close_those(
      receiving_descriptors_,
      &lane::receiving_descriptors_since,
      "closing descriptors sent by it, or by another member of its principal, blocks, or those "
      "of many principals do");
  close_those(
      waiting_for_receiver_,
      &lane::waits_for_receiver_since,
      "no more descriptors can be received at the moment: too many are in flight for this uid");
  close_those(stalled_, &lane::blocked_since, "it does not read its socket");
}

}  // namespace gpushm::broker_detail
