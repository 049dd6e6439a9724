// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <span>

#include "protocol/transport/packet_socket.hpp"
#include "protocol/wire/messages.hpp"

namespace gpushm::transport {

/// A packet and its descriptors, as `sendmsg` takes them. Points into itself: neither copyable nor
/// movable.
class send_header {
 public:
  /// Throws `errc::too_many_descriptors` for more than `wire::max_batch`.
  send_header(std::span<const std::byte> packet, std::span<const int> descriptors);
  send_header(const send_header&) = delete;
  send_header& operator=(const send_header&) = delete;
  ~send_header() = default;

  [[nodiscard]] msghdr& get() noexcept { return header_; }

 private:
  iovec part_;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * wire::max_batch)> control_;
  msghdr header_{};
};

/// The result of a `sendmsg` that has returned -1, for `errno`. Throws if the peer is not the
/// cause.
[[nodiscard]] send_result result_of_failed_send();

}  // namespace gpushm::transport
