// SPDX-License-Identifier: Apache-2.0
#include "broker/session/retry_poll.hpp"

#include <utility>

namespace gpushm::broker_detail {

void retry_poll::later(connection& connection) {
  waiting_.push_back(connection.shared_from_this());
  arm();
}

void retry_poll::arm() {
  if (is_armed_ || waiting_.empty()) {
    return;
  }
  timer_.expires_after(period_);
  timer_.async_wait([this](asio::error_code code) {
    is_armed_ = false;
    if (code) {
      return;
    }
    while (!waiting_.empty()) {
      const std::shared_ptr<connection> each = std::move(waiting_.back());
      waiting_.pop_back();
      if (!each->closed) {
        each->for_each_lane([](lane& lane) {
          lane.readable = lane.readable || lane.kind == lane_kind::requests;
          lane.blocked = lane.waits_for_room;
        });
        loop_.request_turn(*each);
      }
    }
  });
  is_armed_ = true;
}

}  // namespace gpushm::broker_detail
