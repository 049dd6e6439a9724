// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "broker/descriptors/inflight.hpp"
#include "broker/session/connection.hpp"
#include "broker/session/deadlines.hpp"
#include "broker/session/member_log.hpp"
#include "broker/session/retry_poll.hpp"
#include "broker/session/turn_loop.hpp"
#include "succession/recorder/recorder.hpp"

namespace gpushm::broker_detail {

/// Sends the hub's packets from the connections' queues: replies in `deliver` if possible,
/// everything else in the connection's turns. Queued and unread packets are charged to the
/// connection. Records queued replies; an event that a successor finds unsent becomes a resync.
/// Does not block.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe. Runs on the broker's strand.
class sender {
 public:
  /// `max_inflight_descriptors`: upper bound of descriptors sent to one peer and unread.
  /// `inflight`: of those to all peers.
  sender(turn_loop& loop,
         deadlines& late,
         retry_poll& poll,
         connection_ender& ender,
         member_log& log,
         succession::recorder& records,
         std::uint32_t max_inflight_descriptors,
         std::shared_ptr<inflight_budget> inflight = std::make_shared<inflight_budget>());
  sender(const sender&) = delete;
  sender& operator=(const sender&) = delete;
  ~sender() = default;

  /// Queues a packet. Precondition: at most one. An event for which there is no room becomes a
  /// resync.
  void send(connection& connection, prepared packet) noexcept;
  /// Sends queued replies. Precondition: everything is recorded.
  void deliver() noexcept;
  /// Sends what is queued on the event lane up to the state table (`outgoing::is_table`), as far as
  /// the socket has room; the rest in the connection's turns. Precondition: everything is recorded.
  void flush_table(connection& connection) noexcept;
  /// Records everything that is queued.
  void record_queue(connection& connection) noexcept;
  /// Call before the commit that makes permanent what the events that were sent are about. Not for
  /// each event: a connection may have many subscriptions.
  void record_events() noexcept;
  /// As `outbox::takes_event`: there is room in the queue, and no resync is owed already.
  [[nodiscard]] static bool takes_event(const connection& connection,
                                        std::uint64_t subscription) noexcept;
  /// An event is lost: the subscriber gets a resync once its queue is sent.
  void lose_event(connection& connection, std::uint64_t subscription) noexcept;
  /// Sends some queued packets; closes a dropped connection once all are sent. Precondition:
  /// `connection.may_flush()`; everything is recorded.
  void flush(connection& connection);
  /// For what a predecessor has sent, at most `inflight_bound`, if anything is unread.
  void restore_inflight(lane& lane) noexcept;
  /// Call after a request: the client has probably read what was sent before.
  void settle_after_request(connection& connection);

 private:
  void queue(connection& connection, prepared& packet);
  void record_events_later(connection& connection) noexcept;
  void record(const lane& lane, outgoing& packet, std::uint64_t place) noexcept;
  void flush_lane(lane& lane, bool only_replies = false);
  [[nodiscard]] bool record_inflight(lane& lane, std::uint32_t count) noexcept;
  [[nodiscard]] bool take_inflight(lane& lane, inflight_use use, std::uint32_t count) noexcept;
  bool try_send(lane& lane, const outgoing& packet);
  void forget_first(lane& lane);
  void end_sending(lane& lane);
  bool wait_for_room(lane& lane);
  bool wait_for_reader(lane& lane);
  void queue_resyncs(connection& connection);

  turn_loop& loop_;
  deadlines& deadlines_;
  retry_poll& poll_;
  connection_ender& ender_;
  member_log& log_;
  succession::recorder& recorder_;
  std::uint32_t max_inflight_descriptors_;
  std::shared_ptr<inflight_budget> inflight_;
  std::vector<std::shared_ptr<connection>> with_replies_;  ///< queued since the last `deliver`
  std::vector<std::shared_ptr<connection>> with_events_;  ///< queued since the last `record_events`
  bool is_delivering_ = false;
};

/// The event that replaces lost events of a subscription; 0: those about leases.
[[nodiscard]] outgoing resync_of(std::uint64_t subscription);
/// Empties the queue of a lane that is closed, and erases the records of its packets.
void discard_queue(lane& lane) noexcept;

}  // namespace gpushm::broker_detail
