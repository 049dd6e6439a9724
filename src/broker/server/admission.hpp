// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <optional>

#include "base/files/guarded_fd.hpp"
#include "broker/hub/hub.hpp"
#include "broker/session/connection.hpp"
#include "broker/session/deadlines.hpp"
#include "broker/session/member_log.hpp"
#include "broker/session/session_ender.hpp"
#include "broker/session/turn_loop.hpp"
#include "gpushm/error.hpp"
#include "protocol/transport/listener.hpp"
#include "succession/recorder/recorder.hpp"

namespace gpushm::broker_detail {

/// Accepts connections in its turns, creates their sessions, and refuses connections that the hub
/// has no room for, even when this process has no descriptor left.
///
/// While the keeper is busy, the next connection waits for it, and those behind it in the kernel;
/// if the keeper is behind, they are refused. What is refused for lack of room never reaches the
/// keeper: nothing is charged for it.
///
/// A connection that is accepted when the process is killed, and not yet in the keeper, is lost;
/// its client has no reply to its Hello, and connects again.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe. Runs on the broker's strand.
class admission {
 public:
  admission(asio::io_context& io,
            const transport::listener& listening,
            hub& sessions,
            turn_loop& loop,
            deadlines& late,
            session_ender& ends,
            member_log& log,
            succession::recorder& records,
            core::session_id first_session = 1);
  admission(const admission&) = delete;
  admission& operator=(const admission&) = delete;
  ~admission();

  /// Starts accepting connections. Does not block.
  void start();
  /// Call before the listener has another socket, then `start`.
  void stop_listening() { events_.release(); }
  void listen_again() {
    events_.assign(listener_.descriptor());
    start();
  }
  /// Lets a connection, which the hub knows, take part: turns, deadlines, the end of its process.
  /// Throws; the connection then takes no part.
  void start(const std::shared_ptr<connection>& created,
             const transport::peer_credentials& peer,
             const core::principal& principal,
             base::guarded_fd process);

 private:
  /// A connection that is accepted, and not yet a session.
  struct arrival {
    succession::kept_fd socket;
    succession::kept_fd process;
    std::optional<transport::peer_credentials> peer;
    core::principal who;
    std::optional<core::peer> member;
  };

  void accept_some();
  void accept_later(std::chrono::milliseconds pause);
  void welcome(arrival& newcomer);
  void turn_away(arrival& newcomer, const error& why);
  void drop(arrival& newcomer) noexcept;
  void refuse_one();
  void refuse(succession::kept_fd socket, const core::principal& principal, const error& why);

  asio::io_context& io_;
  const transport::listener& listener_;
  hub& hub_;
  turn_loop& loop_;
  deadlines& deadlines_;
  session_ender& session_ender_;
  member_log& log_;
  succession::recorder& recorder_;
  turn_loop::job accept_;
  asio::posix::stream_descriptor events_;  ///< does not own the listener's descriptor
  asio::steady_timer pause_;
  std::optional<arrival> arriving_;  ///< waits for the keeper
  base::guarded_fd spare_;           ///< closed to accept and refuse a client when none is left
  core::session_id next_session_;
};

}  // namespace gpushm::broker_detail
