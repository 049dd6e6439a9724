// SPDX-License-Identifier: Apache-2.0
#include "protocol/transport/reported_call.hpp"

#include <atomic>
#include <cerrno>

#include "base/files/syscall.hpp"
#include "protocol/transport/receive_call.hpp"
#include "protocol/transport/send_header.hpp"

namespace gpushm::transport {

namespace {

/// A SIGKILL leaves the stores of all instructions before it: only the compiler must not move them.
void in_order() noexcept {
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

void announce(reported_call& call,
              reported_call::kind kind,
              std::uint64_t subject,
              const msghdr& header) noexcept {
  call.what = reported_call::kind::none;
  in_order();
  call.header.msg_len = 0;
  call.header.msg_hdr = header;
  call.subject = subject;
  in_order();
  call.what = kind;
  in_order();
}

}  // namespace

void reported_call::clear() noexcept {
  in_order();
  what = kind::none;
  in_order();
}

send_result send_reported(reported_call& call,
                          std::uint64_t subject,
                          int socket,
                          std::span<const std::byte> packet,
                          std::span<const int> descriptors) {
  send_header header(packet, descriptors);
  announce(call, reported_call::kind::send, subject, header.get());
  const int count =
      base::retry([&] { return ::sendmmsg(socket, &call.header, 1, MSG_NOSIGNAL | MSG_DONTWAIT); });
  in_order();
  return count == 1 ? send_result::sent : result_of_failed_send();
}

remove_result remove_reported(reported_call& call, std::uint64_t subject, int socket) {
  // The packet does not fit into no bytes: MSG_TRUNC returns its length. QEMU's emulation of
  // programs makes no system call for a message without parts, so there is one.
  iovec no_bytes{};
  msghdr header{};
  header.msg_iov = &no_bytes;
  header.msg_iovlen = 1;
  announce(call, reported_call::kind::remove, subject, header);
  const int count = receive_after_reset(
      [&] { return ::recvmmsg(socket, &call.header, 1, MSG_DONTWAIT | MSG_TRUNC, nullptr); });
  in_order();
  if (count == 1) {
    return call.has_taken_effect() ? remove_result::removed : remove_result::closed;
  }
  return status_of_failed_receive() == receive_status::would_block ? remove_result::none
                                                                   : remove_result::closed;
}

}  // namespace gpushm::transport
