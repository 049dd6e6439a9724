// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/guarded_fd.hpp"

namespace gpushm::transport {

/// Unix SOCK_SEQPACKET with descriptors. Free functions over a descriptor: the caller owns it and
/// decides who waits. Thread-safe for different sockets; one reader and one writer a socket.

enum class send_result : unsigned char {
  sent,
  would_block,  ///< the peer does not read; nothing was sent
  closed,       ///< the peer is gone
};

/// Sends one packet with `descriptors` (at most `wire::max_batch`; still the caller's afterwards).
/// Never raises SIGPIPE and never blocks. Throws `errc::too_many_descriptors` when the kernel
/// refuses more descriptors in flight, `errc::system_error` otherwise.
[[nodiscard]] send_result send_packet(int socket,
                                      std::span<const std::byte> packet,
                                      std::span<const int> descriptors);

enum class receive_status : unsigned char {
  packet,
  would_block,
  closed,
  truncated,         ///< the packet did not fit: it and its descriptors were dropped
  descriptors_lost,  ///< the packet is whole, but this process's open file limit, or its memory,
                     ///< left no room for all of its descriptors: those that came were closed
};

struct received {
  receive_status status = receive_status::would_block;
  std::span<const std::byte> packet;  ///< inside the buffer given to `receive_packet`
  std::vector<base::unique_fd> descriptors;
};

/// Receives one packet without blocking. `buffer` should hold `wire::max_packet_bytes`. Descriptors
/// come with close-on-exec. Throws `errc::system_error` for anything unexpected.
[[nodiscard]] received receive_packet(int socket, std::span<std::byte> buffer);

/// What was received for the table of descriptors that the program's threads share.
struct received_guarded {
  receive_status status = receive_status::would_block;
  std::span<const std::byte> packet;
  std::vector<base::guarded_fd> descriptors;
};

/// The same; a child that another thread forks meanwhile, or later, does not keep the descriptors.
[[nodiscard]] received_guarded receive_guarded(int socket, std::span<std::byte> buffer);

/// Waits until `socket` can be read (or written); false when `timeout` passes first.
[[nodiscard]] bool wait_readable(int socket, std::chrono::milliseconds timeout);
[[nodiscard]] bool wait_writable(int socket, std::chrono::milliseconds timeout);

/// Connects, without blocking on a full backlog past `timeout`. The socket is non-blocking and
/// close-on-exec. Throws `errc::broker_unreachable` (nobody listens there), permission_denied,
/// invalid_argument (a path that no socket address can hold).
[[nodiscard]] base::guarded_fd connect_packet_socket(const std::string& path,
                                                     std::chrono::milliseconds timeout);

/// Two ends that are connected to each other, both non-blocking and close-on-exec. Throws
/// `errc::system_error`, and too_many_descriptors where this process has no more.
struct packet_socket_pair {
  base::guarded_fd first;
  base::guarded_fd second;
};
[[nodiscard]] packet_socket_pair connected_pair();

/// Bytes that were sent on `socket` and that the peer has not read.
[[nodiscard]] int unread_bytes(int socket) noexcept;

}  // namespace gpushm::transport
