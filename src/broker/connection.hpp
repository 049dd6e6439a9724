// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <asio/generic/seq_packet_protocol.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/steady_timer.hpp>
#include <cstdint>
#include <deque>
#include <optional>
#include <set>

#include "broker/hub.hpp"
#include "core/segment.hpp"

namespace gpushm::broker_detail {

using packet_socket = asio::generic::seq_packet_protocol::socket;

/// One client's socket and what waits to be sent on it. Runs on the server's thread.
struct connection {
  connection(core::session_id number, packet_socket connected)
      : session(number), socket(std::move(connected)), drained(socket.get_executor()) {
    drained.expires_at(asio::steady_timer::time_point::max());
  }

  core::session_id session;
  packet_socket socket;
  /// Readable when the client's process dies, though a child may keep the socket open.
  std::optional<asio::posix::stream_descriptor> process;

  std::deque<outgoing> queue;
  std::set<std::uint64_t> lost_subscriptions;  ///< owed a resync once the queue is empty
  std::uint32_t inflight_descriptors = 0;      ///< sent; zeroed when the peer has read all
  bool writer_runs = false;
  bool closing = false;  ///< close once the queue is out
  bool closed = false;
  asio::steady_timer drained;  ///< cancelled when the queue is out or the connection is closed
};

}  // namespace gpushm::broker_detail
