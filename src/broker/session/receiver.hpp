// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "broker/descriptors/descriptor_receiver.hpp"
#include "broker/hub/hub.hpp"
#include "broker/session/connection.hpp"
#include "broker/session/deadlines.hpp"
#include "broker/session/member_log.hpp"
#include "broker/session/retry_poll.hpp"
#include "broker/session/sender.hpp"
#include "broker/session/turn_loop.hpp"
#include "protocol/transport/packet_socket.hpp"
#include "protocol/wire/messages.hpp"
#include "succession/recorder/recorder.hpp"

namespace gpushm::broker_detail {

/// Receives packets for the hub: directly if they carry no descriptors, else through the descriptor
/// receiver. A packet is removed from its socket after the hub has handled it, so that each is
/// handled once, also by a successor (docs/adr/0031). One whose request needs the keeper stays
/// there while the keeper is busy. Does not block.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe. Runs on the broker's strand.
class receiver {
 public:
  receiver(asio::io_context& io,
           hub& sessions,
           descriptor_receiver& descriptors,
           turn_loop& loop,
           deadlines& late,
           retry_poll& poll,
           retry_poll& keeper_poll,
           sender& replies,
           connection_ender& ender,
           member_log& log,
           succession::recorder& records);
  receiver(const receiver&) = delete;
  receiver& operator=(const receiver&) = delete;
  ~receiver() { receiver_events_.release(); }

  /// Starts taking packets from the descriptor receiver.
  void start();
  /// Receives one packet, or has the descriptor receiver receive it. Precondition: the connection's
  /// `may_read` or `may_read_events`; everything is recorded.
  void read_one(lane& lane);
  /// The same once the client's process is dead: closes the connection when no packet is left or
  /// the next one cannot be a goodbye.
  void read_last(connection& connection);
  /// Number of packets received so far.
  [[nodiscard]] std::uint64_t received() const noexcept { return received_; }

 private:
  void watch(lane& lane);
  [[nodiscard]] bool is_event_lane_ready(connection& connection);
  void wait_for_keeper(lane& lane);
  void take(lane& lane, const std::shared_ptr<received_packet>& packet);
  void handle(lane& lane, const transport::peeked& peeked);
  void take(std::unique_ptr<received_packet> whole);
  void begin_handling(lane& lane);
  void finish_handling(lane& lane);
  bool remove_handled(lane& lane);

  hub& hub_;
  descriptor_receiver& descriptor_receiver_;
  turn_loop& loop_;
  deadlines& deadlines_;
  retry_poll& poll_;
  retry_poll& keeper_poll_;
  sender& sender_;
  connection_ender& ender_;
  member_log& log_;
  succession::recorder& recorder_;
  std::uint64_t received_ = 0;
  asio::posix::stream_descriptor receiver_events_;  ///< does not own the descriptor
  std::array<std::byte, wire::max_packet_bytes> buffer_{};
};

}  // namespace gpushm::broker_detail
