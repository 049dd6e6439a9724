// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include "broker/descriptors/descriptor_receiver.hpp"
#include "broker/descriptors/inflight.hpp"
#include "core/budget.hpp"
#include "succession/recorder/kept_fd.hpp"
#include "succession/recorder/recorder.hpp"

namespace gpushm::broker_detail {

/// Sockets of connections that have ended, until they are closed. A member can make that last:
/// - its packets contain descriptors whose close blocks: other threads close the socket, after
///   those of the same principal (descriptor_receiver);
/// - it has not read descriptors, which stay in flight: only the open socket can tell how long.
/// Such a socket stays charged meanwhile, so that the budget refuses the next connection.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe. Runs on the broker's strand.
class closing_sockets {
 public:
  /// All must outlive it.
  closing_sockets(asio::io_context& io,
                  descriptor_receiver& descriptors,
                  succession::recorder& records)
      : descriptor_receiver_(descriptors), recorder_(records), timer_(io) {}
  closing_sockets(const closing_sockets&) = delete;
  closing_sockets& operator=(const closing_sockets&) = delete;
  /// Does not block.
  ~closing_sockets();

  /// Shuts the socket down, and closes it once that cannot block. `principal`: the principal whose
  /// packets wait if it does; `held`: returned then; empty for a connection that is refused.
  void close(const core::principal& principal,
             succession::kept_fd socket,
             core::charges held = {},
             inflight_charge inflight = {}) noexcept;
  /// For what `received_packet::closed` says.
  void closed_elsewhere(std::uint64_t number) noexcept { waiting_.erase(number); }
  [[nodiscard]] std::size_t size() const noexcept { return waiting_.size(); }

 private:
  struct closing {
    core::principal who;
    succession::kept_fd socket;  ///< empty: another thread closes it
    core::charges held;
    inflight_charge inflight;
  };
  [[nodiscard]] bool is_closed(std::uint64_t number, closing& closing) noexcept;
  void close_now(succession::kept_fd& socket) noexcept;
  [[nodiscard]] closing* add(std::uint64_t number, const core::principal& principal) noexcept;
  void look_again() noexcept;
  void arm(std::chrono::milliseconds after) noexcept;

  descriptor_receiver& descriptor_receiver_;
  succession::recorder& recorder_;
  asio::steady_timer timer_;
  bool is_armed_ = false;
  std::uint64_t next_ = 1;
  std::map<std::uint64_t, closing> waiting_;
  std::uint64_t next_query_ = 0;  ///< the number of the first one to query; 0: of all
};

}  // namespace gpushm::broker_detail
