// SPDX-License-Identifier: Apache-2.0
#include "broker/session/deadlines.hpp"

#include <optional>
#include <string_view>

namespace gpushm::broker_detail {

namespace {

/// Interval between checks.
constexpr std::chrono::milliseconds housekeeping_period{50};

}  // namespace

void deadlines::expect_hello(connection& of, clock::time_point now) {
  of.accepted = now;
  silent_.push_back(of.number);
  arm();
}

void deadlines::expect_reader(lane& on, clock::time_point now) {
  if (!on.blocked_since) {
    stalled_.insert(on.of.number);
    on.blocked_since = now;
    arm();
  }
}

void deadlines::reader_resumed(lane& on, clock::time_point now) noexcept {
  if (on.blocked_since) {
    on.blocked_since = now;
  }
}

void deadlines::reader_is_done(lane& on) noexcept {
  on.blocked_since.reset();
  bool other = false;
  on.of.for_each_lane([&](lane& each) { other = other || each.blocked_since; });
  if (!other) {
    stalled_.erase(on.of.number);
  }
}

void deadlines::expect_receiver(lane& from, clock::time_point now) {
  if (!from.waits_for_receiver_since) {
    waiting_for_receiver_.insert(from.of.number);
    from.waits_for_receiver_since = now;
    arm();
  }
}

void deadlines::expect_descriptors(lane& from, clock::time_point now) {
  from.waits_for_receiver_since.reset();
  receiving_descriptors_.insert(from.of.number);
  from.receiving_descriptors_since = now;
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
  const auto move = [&](const std::set<core::session_id>& all,
                        std::optional<clock::time_point> lane::*since) {
    for (const core::session_id each : all) {
      if (connection* const of = find(each)) {
        of->for_each_lane([&](lane& on) {
          if (on.*since) {
            *(on.*since) += time;
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
    connection* const of = find(silent_.front());
    if (of != nullptr && !of->greeted) {
      if (now - of->accepted < limits_.hello) {
        break;
      }
      ender_.close(*of);
    }
    silent_.pop_front();
  }
  const auto close_those = [&](std::set<core::session_id>& all,
                               std::optional<clock::time_point> lane::*since,
                               std::string_view why) {
    for (auto at = all.begin(); at != all.end();) {
      connection* const of = find(*at);
      std::optional<clock::time_point> oldest;
      if (of != nullptr) {
        of->for_each_lane([&](lane& each) {
          if (each.*since && (!oldest || *(each.*since) < *oldest)) {
            oldest = each.*since;
          }
        });
      }
      if (!oldest) {
        at = all.erase(at);
        continue;
      }
      ++at;
      if (now - *oldest >= limits_.send) {
        log_.dropped(*of, why);
        ender_.close(*of);
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
