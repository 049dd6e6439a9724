// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpushm::transport {

/// What the first packet is that a socket has not received.
enum class unread : unsigned char {
  nothing,      ///< there is no packet, or this is not a socket
  plain,        ///< a packet without descriptors; it may be empty
  descriptors,  ///< a packet with descriptors: closing the socket may block
  unknown,      ///< not a connected socket: a listener
};

/// For a Unix SOCK_SEQPACKET socket that is about to be closed: sets SO_PASSCRED, without which the
/// end of file looks like an empty packet. Receives nothing and does not block.
[[nodiscard]] unread first_unread(int socket) noexcept;

}  // namespace gpushm::transport
