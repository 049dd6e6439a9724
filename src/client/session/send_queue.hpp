// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "gpushm/types.hpp"
#include "protocol/transport/packet_socket.hpp"

namespace gpushm::client_detail {

/// The sending side of a connection. Does not block: a packet whose sender waits for a reply is
/// sent now or not at all (`try_send`); others (releases, confirmations) are sent now or queued
/// until the socket accepts them. Keeps the order: packets queued before a request are sent before
/// it. Merges queued releases of the same generation.
///
/// Thread-safety: distinct objects: safe; shared objects: safe.
class send_queue {
 public:
  /// Upper bound of queued packets; further ones are dropped, and the broker's deadline covers
  /// their replies. Releases are not counted: there is one per generation.
  static constexpr std::size_t max_packets = 65'536;

  /// `socket` stays the caller's.
  explicit send_queue(int socket) noexcept : socket_(socket) {}
  send_queue(const send_queue&) = delete;
  send_queue& operator=(const send_queue&) = delete;
  ~send_queue() = default;

  /// Sends the queue, then this packet. `would_block`: the packet was not sent. Throws as
  /// `transport::send_packet`.
  [[nodiscard]] transport::send_result try_send(std::span<const std::byte> packet,
                                                std::span<const int> descriptors);
  /// Sends or queues the packet. Returns true if the queue is not empty: call `flush` once the
  /// socket is writable.
  bool push(std::vector<std::byte> packet);
  /// As `push`, for a `Release` of `count` grants. Releases leave three quarters of the socket's
  /// buffer to other messages, so that a `Bye` can still be sent.
  bool release(gpushm::generation generation, std::uint32_t count, bool never_mapped);
  /// Sends what the socket accepts. Returns true if the queue is not empty.
  bool flush();
  [[nodiscard]] bool pending() const;
  /// Clears the queue before the connection is closed, which makes it unnecessary.
  void clear() noexcept;
  /// Ends the use of the socket before it returns, as if its peer had closed it.
  void close() noexcept;

 private:
  // Called with the lock held.
  [[nodiscard]] transport::send_result flush_packets();
  [[nodiscard]] transport::send_result flush_releases(bool only_with_room);
  [[nodiscard]] bool is_pending() const noexcept { return !packets_.empty() || !releases_.empty(); }
  void drop() noexcept;

  int socket_;                ///< -1: closed
  mutable std::mutex mutex_;  // held for system calls that do not block
  std::deque<std::vector<std::byte>> packets_;
  struct kept_release {
    std::uint32_t count = 0;
    bool never_mapped = true;
  };
  std::unordered_map<gpushm::generation, kept_release> releases_;
};

}  // namespace gpushm::client_detail
