// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "broker/connection.hpp"
#include "broker/deadlines.hpp"
#include "broker/member_log.hpp"
#include "broker/retry_poll.hpp"
#include "broker/turn_loop.hpp"

namespace gpushm::broker_detail {

/// Sends the hub's packets: an answer immediately if possible, everything else from the
/// connection's queue in its turns. Queued and unread packets are charged to the connection. Does
/// not block.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe. Runs on the broker's strand.
class sender {
 public:
  /// `max_inflight_descriptors`: upper bound of descriptors sent to one peer and unread.
  sender(turn_loop& loop,
         deadlines& late,
         retry_poll& poll,
         connection_ender& ender,
         member_log& log,
         std::uint32_t max_inflight_descriptors);
  sender(const sender&) = delete;
  sender& operator=(const sender&) = delete;
  ~sender() = default;

  /// Precondition: at most one packet. An event for which there is no room becomes a resync.
  void send(connection& to, prepared packet) noexcept;
  /// An event is lost: the subscriber gets a resync once its queue is sent.
  void lose_event(connection& to, std::uint64_t subscription) noexcept;
  /// Sends some queued packets; closes a dropped connection once all are sent. Precondition:
  /// `to.may_flush()`.
  void flush(connection& to);
  /// Call after a request: the client has probably read what was sent before.
  void settle_after_request(connection& from);

 private:
  void send_or_queue(connection& to, prepared& packet);
  void flush_lane(lane& on);
  bool try_send(lane& on, const outgoing& packet);
  static void forget_first(lane& on);
  void end_sending(lane& on);
  bool wait_for_room(lane& on);
  bool wait_for_reader(lane& on);
  static void queue_resyncs(connection& to);

  turn_loop& loop_;
  deadlines& deadlines_;
  retry_poll& poll_;
  connection_ender& ender_;
  member_log& log_;
  std::uint32_t max_inflight_descriptors_;
};

}  // namespace gpushm::broker_detail
