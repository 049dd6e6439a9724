// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <unordered_map>

#include "broker/descriptors/closing_sockets.hpp"
#include "broker/descriptors/descriptor_receiver.hpp"
#include "broker/hub/hub.hpp"
#include "broker/session/connection.hpp"
#include "broker/session/hub_driver.hpp"
#include "broker/session/member_log.hpp"
#include "broker/session/turn_loop.hpp"
#include "succession/recorder/kept_fd.hpp"
#include "succession/recorder/recorder.hpp"

namespace gpushm::broker_detail {

/// Ends connections, when they close or their process dies, and their sessions. No other
/// code ends sessions (docs/adr/0021).
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe. Runs on the broker's strand.
class session_ender final : public connection_ender {
 public:
  /// `fence_delay`: how long leases stay after a death without a proven fence.
  session_ender(asio::io_context& io,
                hub& sessions,
                hub_driver& driver,
                turn_loop& loop,
                descriptor_receiver& descriptors,
                member_log& log,
                succession::recorder& records,
                std::chrono::milliseconds fence_delay);

  /// Before the first session ends, and after a handler has thrown for lack of memory.
  void start() { arm_retry(); }
  /// Registers a connection until it is closed; connections of the same process end together.
  void track(connection& created);
  /// Handles the end of `connection.process`.
  void watch_process(connection& connection);
  /// Sets the client's fence. Either both descriptors are empty or neither is.
  void set_fence(connection& connection,
                 fence kind,
                 succession::kept_fd pidfd,
                 succession::kept_fd life);
  /// For a connection that the predecessor had closed: continues to wait for its fence. Does not
  /// end it within this call.
  void restore_closed(connection& gone);

  void close(connection& gone) override;
  void socket_closed(std::uint64_t number) noexcept override { closing_.closed_elsewhere(number); }
  /// Closes the connection after queued packets are sent.
  void drop(connection& gone, std::string_view why) noexcept;
  /// Closes a socket of no session without blocking the broker: unread packets may contain
  /// descriptors whose close blocks. `principal`: the principal whose packets wait if it does.
  void close_socket(const core::principal& principal, succession::kept_fd socket) noexcept;

 private:
  [[nodiscard]] core::charges charges_of(const lane& closing) noexcept;
  void mute_siblings(connection& gone);
  void process_died(connection& connection);
  void post_end(connection& gone);
  void end_session(connection& gone);
  void watch_fence(connection& gone) noexcept;
  void watch_again();
  void arm_retry();
  void fence_reached(core::session_id number);

  asio::io_context& io_;
  hub& hub_;
  hub_driver& driver_;
  turn_loop& loop_;
  member_log& log_;
  succession::recorder& recorder_;
  std::chrono::milliseconds fence_delay_;
  closing_sockets closing_;
  std::unordered_multimap<std::int32_t, connection*> by_pid_;  ///< open connections
  asio::steady_timer retry_;  ///< waits all the time: to begin would need memory
  bool is_retry_armed_ = false;
  std::size_t unwatched_ = 0;  ///< connections whose fence nothing waits for
};

}  // namespace gpushm::broker_detail
