// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "protocol/transport/packet_socket.hpp"

namespace gpushm::transport {

/// A system call that the kernel itself reports: `sendmmsg` and `recvmmsg` store the length of the
/// packet before they return, and handle no signal in between. With this object in memory that
/// outlives the process, a successor of a killed process knows whether the call has taken effect
/// (docs/adr/0031).
///
/// All bytes zero is "no call". Thread-safety: distinct objects: safe; shared objects: unsafe.
struct reported_call {
  /// Stored: never renumber.
  enum class kind : std::uint32_t { none = 0, send = 1, remove = 2 };

  kind what = kind::none;
  std::uint32_t reserved = 0;
  std::uint64_t subject = 0;  ///< the caller's number for the packet
  mmsghdr header{};           ///< `msg_len` is not zero: the call has taken effect

  /// Precondition: `what` is not none.
  [[nodiscard]] bool has_taken_effect() const noexcept { return header.msg_len != 0; }
  /// Forgets the call, once its effect is recorded.
  void clear() noexcept;
};

/// As `send_packet`, and leaves the report in `call` until it is cleared. `packet` must not be
/// empty: its length is the report.
[[nodiscard]] send_result send_reported(reported_call& call,
                                        std::uint64_t subject,
                                        int socket,
                                        std::span<const std::byte> packet,
                                        std::span<const int> descriptors);

enum class remove_result : unsigned char {
  removed,
  none,    ///< no packet has arrived
  closed,  ///< the peer has disconnected, and no packet is left
};

/// Removes the first packet that `socket` has received, which the caller has read with MSG_PEEK,
/// and closes its descriptors; leaves the report in `call` until it is cleared. Does not block for
/// packets; closing descriptors can block. Throws `errc::system_error`; nothing was then removed.
[[nodiscard]] remove_result remove_reported(reported_call& call, std::uint64_t subject, int socket);

}  // namespace gpushm::transport
