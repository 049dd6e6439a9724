// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "broker/descriptors/inflight.hpp"
#include "broker/hub/hub.hpp"
#include "succession/recorder/kept_fd.hpp"

namespace gpushm::broker_detail {

struct connection;

/// One socket of a session: its send queue, what was sent and is unread, and whether it may be
/// readable. Runs on the server's thread.
struct lane {
  using clock = std::chrono::steady_clock;

  lane(asio::io_context& io, connection& owner, lane_kind lane_kind, succession::kept_fd connected)
      : of(owner), kind(lane_kind), socket(std::move(connected)), events(io) {
    if (socket) {  // empty: closed before a restart
      events.assign(socket.get());
    }
  }
  lane(const lane&) = delete;
  lane& operator=(const lane&) = delete;
  ~lane() {
    if (events.is_open()) {  // not closed by the server: it is being destroyed
      events.release();
    }
  }

  /// Releases the socket from the event loop.
  [[nodiscard]] succession::kept_fd take_socket() {
    events.release();
    return std::move(socket);
  }

  [[nodiscard]] bool may_send() const noexcept { return !blocked && !queue.empty(); }

  connection& of;
  const lane_kind kind;
  succession::kept_fd socket;
  asio::posix::stream_descriptor events;  ///< does not own `socket`

  prepared queue;
  std::uint64_t queued = 0;                ///< packets so far, sent or not
  std::uint64_t sent = 0;                  ///< of these
  std::uint32_t inflight_descriptors = 0;  ///< sent; reset when the peer has read everything
  inflight_charge inflight;                ///< for descriptors sent and perhaps not read
  /// The most that `inflight_descriptors` was, rounded up: it is recorded with the session. At
  /// first those of Welcome or a state table.
  std::uint32_t inflight_bound = 4;
  /// Upper bound of bytes sent and not read; charged to the connection's `held`.
  std::uint64_t unread_bytes = 0;
  std::uint64_t unread_when_queried = 0;  ///< the kernel's answer
  bool blocked = false;                   ///< the first packet of the queue cannot be sent
  bool waits_for_room = false;            ///< the event loop waits for room in the socket
  bool send_closed = false;               ///< the client no longer receives
  std::optional<clock::time_point> blocked_since;

  bool readable = false;  ///< there may be something to receive
  bool handled = false;   ///< its first packet, which is still to be removed
  /// Keeps foreign descriptors of that packet open, so that removing it closes none of them.
  std::shared_ptr<void> peeked;
  bool is_put_off = false;  ///< `peeked` has not been handled: it waits for the keeper
  bool over = false;        ///< the client has closed it, in at least one direction
  bool wait_armed = false;  ///< the event loop waits until it is readable
  std::optional<clock::time_point> receiving_descriptors_since;
  /// The descriptor receiver takes no packets.
  std::optional<clock::time_point> waits_for_receiver_since;
};

}  // namespace gpushm::broker_detail
