// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <deque>
#include <set>

#include "broker/hub/hub.hpp"
#include "broker/session/connection.hpp"
#include "broker/session/member_log.hpp"

namespace gpushm::broker_detail {

/// Closes connections whose peers miss a deadline: for Hello, for reading, or for descriptors that
/// cannot be received: closing them, or those of others, blocks. Checks periodically only while a
/// deadline is pending, so that an idle broker sleeps.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe. Runs on the broker's strand.
class deadlines {
 public:
  using clock = std::chrono::steady_clock;
  struct limits {
    std::chrono::milliseconds hello;
    std::chrono::milliseconds send;  ///< for unread packets, and for the descriptor receiver
  };

  deadlines(asio::io_context& io,
            const hub& sessions,
            connection_ender& ender,
            member_log& log,
            limits limit)
      : sessions_(sessions), ender_(ender), log_(log), limits_(limit), timer_(io) {}
  deadlines(const deadlines&) = delete;
  deadlines& operator=(const deadlines&) = delete;
  ~deadlines() = default;

  /// `connection` was accepted at `now`. Precondition: calls are in order of `now`.
  void expect_hello(connection& connection, clock::time_point now);
  /// Packets queued on `lane` wait for the peer. No effect if they already do.
  void expect_reader(lane& lane, clock::time_point now);
  /// The peer has read something: restarts its deadline.
  static void reader_resumed(lane& lane, clock::time_point now) noexcept;
  /// Ends the wait for the peer.
  void reader_is_done(lane& read_lane) noexcept;
  /// The descriptor receiver is too busy to receive a packet of `lane`. No effect if it already
  /// was.
  void expect_receiver(lane& lane, clock::time_point now);
  /// The descriptor receiver receives a packet of `lane`, whose descriptors may block it.
  void expect_descriptors(lane& lane, clock::time_point now);
  static void descriptors_received(lane& lane) noexcept {
    lane.receiving_descriptors_since.reset();
  }

  /// `close_late`. If this check comes much later than it was `due`, the broker did not run
  /// meanwhile: it was stopped, or its machine was. What peers have done in that time it has not
  /// seen yet, so it does not count. Throws std::bad_alloc, as `close_late`.
  void check(clock::time_point due, clock::time_point now);
  /// Closes connections that are late at `now`. Throws std::bad_alloc; some may then be left.
  void close_late(clock::time_point now);
  /// Call if one of the above threw: starts the timer for deadlines already added. Throws
  /// std::bad_alloc.
  void arm();

 private:
  /// Returns null if it is closed or erased.
  [[nodiscard]] connection* find(core::session_id number) const noexcept;
  /// Makes all deadlines later.
  void forgive(clock::duration time) noexcept;

  const hub& sessions_;
  connection_ender& ender_;
  member_log& log_;
  limits limits_;
  asio::steady_timer timer_;
  bool is_armed_ = false;
  // Numbers, because a connection may be destroyed meanwhile. `close_late` removes entries that
  // no longer wait.
  std::deque<core::session_id> silent_;  ///< no Hello yet, in order of acceptance
  std::set<core::session_id> stalled_;   ///< with packets that cannot be sent
  std::set<core::session_id> receiving_descriptors_;
  std::set<core::session_id> waiting_for_receiver_;
};

}  // namespace gpushm::broker_detail
