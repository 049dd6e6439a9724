// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <vector>

#include "broker/session/connection.hpp"
#include "broker/session/turn_loop.hpp"

namespace gpushm::broker_detail {

/// Retries connections that wait for conditions without a kernel event: the peer reads its
/// descriptors, its memory is released, the descriptor receiver has room, the keeper reads.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe. Runs on the broker's strand.
class retry_poll {
 public:
  retry_poll(asio::io_context& io,
             turn_loop& loop,
             std::chrono::milliseconds period = std::chrono::milliseconds(2))
      : timer_(io), loop_(loop), period_(period) {}
  retry_poll(const retry_poll&) = delete;
  retry_poll& operator=(const retry_poll&) = delete;
  ~retry_poll() = default;

  /// Lets `connection` receive and send again, in a turn some milliseconds later.
  void later(connection& connection);
  /// Call if `later` threw: starts the timer for connections already added. Throws std::bad_alloc.
  void arm();

 private:
  asio::steady_timer timer_;
  turn_loop& loop_;
  std::chrono::milliseconds period_;
  std::vector<std::shared_ptr<connection>> waiting_;
  bool is_armed_ = false;
};

}  // namespace gpushm::broker_detail
