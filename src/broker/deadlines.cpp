// SPDX-License-Identifier: Apache-2.0
#include "broker/deadlines.hpp"

#include <optional>
#include <string_view>

namespace gpushm::broker_detail {

namespace {

/// How often is looked.
constexpr std::chrono::milliseconds housekeeping_period{50};

}  // namespace

void deadlines::expect_hello(connection& of, clock::time_point now) {
  of.accepted = now;
  silent_.push_back(of.number);
  arm();
}

void deadlines::expect_reader(connection& of, clock::time_point now) {
  if (!of.blocked_since) {
    stalled_.insert(of.number);
    of.blocked_since = now;
    arm();
  }
}

void deadlines::reader_goes_on(connection& of, clock::time_point now) noexcept {
  if (of.blocked_since) {
    of.blocked_since = now;
  }
}

void deadlines::reader_is_done(connection& of) noexcept {
  of.blocked_since.reset();
  stalled_.erase(of.number);
}

void deadlines::expect_porter(connection& of, clock::time_point now) {
  at_porter_.insert(of.number);
  of.at_porter_since = now;
  arm();
}

connection* deadlines::find(core::session_id number) const noexcept {
  auto* const found = static_cast<connection*>(sessions_.find(number));
  return found == nullptr || found->closed ? nullptr : found;
}

void deadlines::arm() {
  if (is_armed_ || (silent_.empty() && stalled_.empty() && at_porter_.empty())) {
    return;
  }
  timer_.expires_after(housekeeping_period);
  timer_.async_wait([this](asio::error_code code) {
    is_armed_ = false;
    if (code) {
      return;
    }
    log_.guarded([&] { close_the_late(clock::now()); });
    arm();
  });
  is_armed_ = true;
}

void deadlines::close_the_late(clock::time_point now) {
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
                               std::optional<clock::time_point> connection::*since,
                               std::string_view why) {
    for (auto at = all.begin(); at != all.end();) {
      connection* const of = find(*at);
      if (of == nullptr || !(of->*since)) {
        at = all.erase(at);
        continue;
      }
      ++at;
      if (now - *(of->*since) >= limits_.send) {
        log_.dropped(*of, why);
        ender_.close(*of);
      }
    }
  };
  close_those(at_porter_,
              &connection::at_porter_since,
              "descriptors that it, or another member of its kind, has sent block when they are "
              "closed");
  close_those(stalled_, &connection::blocked_since, "it does not read what it is sent");
}

}  // namespace gpushm::broker_detail
