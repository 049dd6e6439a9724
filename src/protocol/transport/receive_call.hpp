// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>

#include "base/files/syscall.hpp"
#include "protocol/transport/packet_socket.hpp"

namespace gpushm::transport {

/// The result of `receive`, a `recvmsg` or `recvmmsg`; calls it again after a signal, and after an
/// ECONNRESET: that is reported once, before the data that the peer sent before it closed with
/// something unread.
template <typename Receive>
[[nodiscard]] auto receive_after_reset(Receive&& receive) {
  const auto result = base::retry(receive);
  return result < 0 && errno == ECONNRESET ? base::retry(receive) : result;
}

/// would_block or closed, after a call that has returned -1, for `errno`. Throws if it is another
/// one.
[[nodiscard]] receive_status status_of_failed_receive();

}  // namespace gpushm::transport
