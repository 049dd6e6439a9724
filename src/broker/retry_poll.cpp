// SPDX-License-Identifier: Apache-2.0
#include "broker/retry_poll.hpp"

#include <chrono>
#include <utility>

namespace gpushm::broker_detail {

namespace {

constexpr std::chrono::milliseconds period{2};

}  // namespace

void retry_poll::later(connection& of) {
  waiting_.push_back(of.shared_from_this());
  if (waiting_.size() > 1) {
    return;
  }
  timer_.expires_after(period);
  timer_.async_wait([this](asio::error_code code) {
    if (code) {
      return;
    }
    for (const auto& each : std::exchange(waiting_, {})) {
      if (!each->closed) {
        each->readable = true;
        each->blocked = false;
        loop_.ask(*each);
      }
    }
  });
}

}  // namespace gpushm::broker_detail
