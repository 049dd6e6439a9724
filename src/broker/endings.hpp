// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <string_view>
#include <unordered_map>

#include "base/guarded_fd.hpp"
#include "broker/connection.hpp"
#include "broker/hub.hpp"
#include "broker/hub_driver.hpp"
#include "broker/member_log.hpp"
#include "broker/porter.hpp"
#include "broker/turn_loop.hpp"

namespace gpushm::broker_detail {

/// How connections end: by a close, or by the death of their process; and what becomes of their
/// sessions then. The only place where a session ends (docs/adr/0021).
///
/// Distinct objects: safe. Shared objects: unsafe; runs on the broker's strand.
class endings final : public connection_ender {
 public:
  /// `fence_delay`: how long leases stay after a death that no fence proves.
  endings(asio::io_context& io,
          hub& sessions,
          hub_driver& driver,
          turn_loop& loop,
          porter& doors,
          member_log& log,
          std::chrono::milliseconds fence_delay);

  /// One whose siblings, connections of the same process, end with it. Until it is closed.
  void remember(connection& made);
  /// Notices the end of `of.process`.
  void watch_process(connection& of);
  /// What the client gave as its fence. Both are empty, or neither.
  void set_fence(connection& of, fence kind, base::guarded_fd pidfd, base::guarded_fd life);

  void close(connection& gone) override;
  /// Closes it once what waits to be sent is out.
  void drop(connection& gone, std::string_view why) noexcept;
  /// Closes a socket without the risk that the close blocks: there may be descriptors among what
  /// was not read. `who` is the principal that is blocked if it does.
  void close_socket(const core::principal& who, base::guarded_fd socket) noexcept;

 private:
  void mute_siblings(connection& gone);
  void process_died(connection& of);
  void end_session(connection& gone);
  void fence_reached(core::session_id number);

  asio::io_context& io_;
  hub& hub_;
  hub_driver& driver_;
  turn_loop& loop_;
  porter& porter_;
  member_log& log_;
  std::chrono::milliseconds fence_delay_;
  std::unordered_multimap<std::int32_t, connection*> by_pid_;  ///< those that are not closed
};

}  // namespace gpushm::broker_detail
