// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/files/guarded_fd.hpp"

namespace gpushm::transport {

/// Unix SOCK_SEQPACKET with descriptors. Free functions over a descriptor: the caller owns it and
/// does the waiting. Thread-safety: distinct sockets: safe; shared sockets: one reader and one
/// writer.

enum class send_result : unsigned char {
  sent,
  would_block,  ///< the peer does not read; nothing was sent
  closed,       ///< the peer has disconnected
};

/// Sends one packet with `descriptors` (at most `wire::max_batch`; the caller keeps them). Never
/// raises SIGPIPE and never blocks. Throws `errc::too_many_descriptors` if the kernel rejects more
/// descriptors in flight, `errc::system_error` otherwise.
[[nodiscard]] send_result send_packet(int socket,
                                      std::span<const std::byte> packet,
                                      std::span<const int> descriptors);

enum class receive_status : unsigned char {
  packet,
  would_block,
  closed,
  truncated,         ///< the packet did not fit: it and its descriptors were dropped
  descriptors_lost,  ///< the packet is complete, but the open file limit or memory of this process
                     ///< has no room for all of its descriptors: those received were closed
};

struct received {
  receive_status status = receive_status::would_block;
  std::span<const std::byte> packet;  ///< part of the buffer passed to `receive_packet`
  std::vector<base::unique_fd> descriptors;
};

/// Receives one packet without blocking. `buffer` should have room for `wire::max_packet_bytes`.
/// Descriptors are close-on-exec. Throws `errc::system_error` for anything unexpected.
[[nodiscard]] received receive_packet(int socket, std::span<std::byte> buffer);

/// The same, but leaves the packet in the socket: `remove_reported` removes it. Each call returns
/// new descriptors.
[[nodiscard]] received peek_packet(int socket, std::span<std::byte> buffer);

/// The first packet's bytes, which stay in the socket with its descriptors.
struct peeked {
  receive_status status = receive_status::would_block;  ///< never descriptors_lost
  bool has_descriptors = false;
  std::span<const std::byte> packet;  ///< part of the buffer
};

/// Reads the first packet without removing it, and receives no descriptor. An empty packet without
/// descriptors is `closed`. Throws `errc::system_error`.
[[nodiscard]] peeked peek_bytes(int socket, std::span<std::byte> buffer);

/// A packet received in the descriptor table that the program's threads share.
struct received_guarded {
  receive_status status = receive_status::would_block;
  std::span<const std::byte> packet;
  std::vector<base::guarded_fd> descriptors;
};

/// The same; a child that another thread forks meanwhile, or later, does not keep the descriptors.
[[nodiscard]] received_guarded receive_guarded(int socket, std::span<std::byte> buffer);

/// Blocks until `socket` is readable (or writable); false if `timeout` expires first.
[[nodiscard]] bool wait_readable(int socket, std::chrono::milliseconds timeout);
[[nodiscard]] bool wait_writable(int socket, std::chrono::milliseconds timeout);

/// Connects; blocks on a full backlog for at most `timeout`. The socket is non-blocking and
/// close-on-exec. Throws `errc::broker_unreachable` (no process listens there), permission_denied,
/// invalid_argument (a path that is too long for a socket address).
[[nodiscard]] base::guarded_fd connect_packet_socket(const std::string& path,
                                                     std::chrono::milliseconds timeout);

/// Two connected ends, both non-blocking and close-on-exec. Throws `errc::system_error`, and
/// too_many_descriptors if this process has none left.
struct packet_socket_pair {
  base::guarded_fd first;
  base::guarded_fd second;
};
[[nodiscard]] packet_socket_pair connected_pair();

/// Bytes sent on `socket` that the peer has not read.
[[nodiscard]] int unread_bytes(int socket) noexcept;

}  // namespace gpushm::transport
