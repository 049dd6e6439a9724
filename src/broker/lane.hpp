// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>

#include "base/guarded_fd.hpp"
#include "broker/hub.hpp"

namespace gpushm::broker_detail {

struct connection;

/// One socket of a session: what waits to be sent on it, what was sent and not read, and whether
/// there may be something to receive. Runs on the server's thread.
struct lane {
  using clock = std::chrono::steady_clock;

  lane(asio::io_context& io, connection& owner, lane_kind which, base::guarded_fd connected)
      : of(owner), kind(which), socket(std::move(connected)), events(io, socket.get()) {}
  lane(const lane&) = delete;
  lane& operator=(const lane&) = delete;
  ~lane() {
    if (events.is_open()) {  // not closed by the server: it is being destroyed
      events.release();
    }
  }

  /// The event loop lets go of it.
  [[nodiscard]] base::guarded_fd take_socket() {
    events.release();
    return std::move(socket);
  }

  [[nodiscard]] bool may_send() const noexcept { return !blocked && !queue.empty(); }

  connection& of;
  const lane_kind kind;
  base::guarded_fd socket;
  asio::posix::stream_descriptor events;  ///< of `socket`, which it does not own

  prepared queue;
  std::uint64_t queued = 0;                ///< packets so far, whether sent or not
  std::uint32_t inflight_descriptors = 0;  ///< sent; zeroed when the peer has read all
  /// Sent, and possibly not read: at most so much; charged to the connection's `held`.
  std::uint64_t unread_bytes = 0;
  bool blocked = false;         ///< the first in the queue cannot go
  bool waits_for_room = false;  ///< the event loop watches for that
  bool deaf = false;            ///< the client receives nothing any more
  std::optional<clock::time_point> blocked_since;

  bool readable = false;    ///< there may be something to receive
  bool over = false;        ///< the client has closed it, in one direction at least
  bool wait_armed = false;  ///< the event loop watches for that
  std::optional<clock::time_point> at_porter_since;
};

}  // namespace gpushm::broker_detail
