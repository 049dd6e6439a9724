// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "broker/descriptors/worker_pool.hpp"
#include "core/budget.hpp"
#include "protocol/transport/packet_socket.hpp"
#include "succession/recorder/descriptor_shelf.hpp"
#include "succession/recorder/kept_fd.hpp"

namespace gpushm::broker_detail {

/// Receives packets that carry descriptors without exposing the broker to foreign ones. Closing a
/// socket with SO_LINGER, or a file whose FUSE server does not answer, blocks as long as its owner
/// likes; a thread blocked this way cannot be killed and keeps every descriptor of its process
/// open. So these packets are received by threads with a separate descriptor table
/// (CLOSE_RANGE_UNSHARE), which give the keeper and pass on only descriptors of harmless kinds and
/// close the rest. Each principal's packets are received one at a time, by its
/// `core::scheduling_key`: it only blocks itself. What a request does not take reaches neither the
/// keeper nor the broker's table.
///
/// Packets are only read, not removed. The threads keep a packet's descriptors open until its
/// `received_packet` is destroyed: remove the packet before that, and the removal closes nothing.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe. Runs on the broker's strand.
class descriptor_receiver {
 public:
  /// `shelf` is called once, in a thread with the other table; it may return nothing, if no
  /// descriptor is to be kept. Throws `errc::system_error`, and what `shelf` throws.
  explicit descriptor_receiver(
      const std::function<std::optional<succession::descriptor_shelf>()>& shelf = [] {
        return std::nullopt;
      });
  descriptor_receiver(const descriptor_receiver&) = delete;
  descriptor_receiver& operator=(const descriptor_receiver&) = delete;
  /// Does not wait for threads that are blocked.
  ~descriptor_receiver();

  /// Readable when `next` would return a packet.
  [[nodiscard]] int descriptor() const noexcept { return broker_end_.get(); }
  /// Starts receiving one packet from `socket`; `next` returns it later. `taken`: the number of
  /// descriptors that its request takes (`hub::descriptors_taken`). Returns false if the receiver
  /// is busy: try again later.
  [[nodiscard]] bool fetch(std::uint64_t session,
                           const core::principal& principal,
                           int socket,
                           std::size_t taken);
  /// Closes a socket that may contain unread descriptors in another thread, and the keeper's copy;
  /// then `next` returns `number`, which is not 0. Returns false if the receiver is busy: `socket`
  /// is unchanged, try again later.
  [[nodiscard]] bool close_elsewhere(const core::principal& principal,
                                     succession::kept_fd& socket,
                                     std::uint64_t number) noexcept;
  /// Returns null when no packet is ready.
  [[nodiscard]] std::unique_ptr<received_packet> next();

 private:
  base::guarded_fd broker_end_;
};

/// Discards packets without descriptors from a socket that was shut down. Returns true when the
/// socket is empty, so that closing it cannot block.
[[nodiscard]] bool drain(int socket) noexcept;

}  // namespace gpushm::broker_detail
