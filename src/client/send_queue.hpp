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
#include "transport/packet_socket.hpp"

namespace gpushm::detail {

/// The writing half of a connection. Nothing here blocks: a packet whose sender waits for an answer
/// is sent now or not at all (`try_send`), and what nobody waits for (releases, confirmations) is
/// sent now or kept until the socket takes it. The order is kept: what was queued before a request
/// is sent before it. Releases of one generation that are kept become one.
///
/// Distinct objects: safe. Shared objects: safe.
class send_queue {
 public:
  /// Packets that are kept; further ones are dropped, and whoever asked for them runs into its
  /// deadline. Releases are not counted: there is one a generation.
  static constexpr std::size_t max_packets = 65'536;

  /// `socket` stays the caller's.
  explicit send_queue(int socket) noexcept : socket_(socket) {}
  send_queue(const send_queue&) = delete;
  send_queue& operator=(const send_queue&) = delete;
  ~send_queue() = default;

  /// Sends what is kept, then this packet. `would_block`: the packet was not sent. Throws as
  /// `transport::send_packet`.
  [[nodiscard]] transport::send_result try_send(std::span<const std::byte> packet,
                                                std::span<const int> descriptors);
  /// Sends the packet, or keeps it. True when something is kept: `flush` once the socket is
  /// writable.
  bool push(std::vector<std::byte> packet);
  /// The same with a `Release` of `count` grants. Releases leave three quarters of the socket's
  /// buffer to the others, so that a `Bye` can still be sent.
  bool release(gpushm::generation generation, std::uint32_t count, bool never_mapped);
  /// Sends what the socket takes. True when something is left.
  bool flush();
  [[nodiscard]] bool pending() const;
  /// Forgets what is kept: the end of the connection, which comes next, says as much.
  void clear() noexcept;

 private:
  // With the lock held.
  [[nodiscard]] transport::send_result flush_packets();
  [[nodiscard]] transport::send_result flush_releases(bool only_while_roomy);
  [[nodiscard]] bool is_pending() const noexcept { return !packets_.empty() || !releases_.empty(); }
  void drop() noexcept;

  int socket_;
  mutable std::mutex mutex_;  // held for system calls that do not block
  std::deque<std::vector<std::byte>> packets_;
  struct kept_release {
    std::uint32_t count = 0;
    bool never_mapped = true;
  };
  std::unordered_map<gpushm::generation, kept_release> releases_;
};

}  // namespace gpushm::detail
