// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/guarded_fd.hpp"
#include "broker/end_watch.hpp"
#include "broker/fence_watch.hpp"
#include "broker/hub.hpp"
#include "broker/lane.hpp"
#include "broker/turns.hpp"
#include "core/segment.hpp"
#include "transport/credentials.hpp"

namespace gpushm::broker_detail {

/// One client's session: its two sockets, and what it waits for; once the connection is gone, the
/// fence that its leases wait for. Runs on the server's thread.
struct connection final : session, std::enable_shared_from_this<connection> {
  using clock = std::chrono::steady_clock;

  connection(asio::io_context& io, core::session_id id, base::guarded_fd connected)
      : session(id), requests(io, *this, lane_kind::requests, std::move(connected)) {}
  connection(const connection&) = delete;
  connection& operator=(const connection&) = delete;
  ~connection() override {
    process.stop();
    life.stop();
  }

  /// Answers that may wait for a client before its next request is read. Requests without an answer
  /// are always read up to there: an exporter that is asked more than it reads must be able to
  /// answer.
  static constexpr std::size_t max_queued_answers = 16;

  [[nodiscard]] bool may_answer() const noexcept { return queued_answers < max_queued_answers; }
  [[nodiscard]] bool may_read() const noexcept {
    return requests.readable && !dropped && !requests.at_porter_since && may_answer() && !rest;
  }
  [[nodiscard]] bool may_read_events() const noexcept {
    return events && events->readable && !dropped;
  }
  [[nodiscard]] bool has_queued() const noexcept {
    return !requests.queue.empty() || (events && !events->queue.empty());
  }
  [[nodiscard]] bool may_resync() const noexcept {
    return events && !events->blocked && !events->deaf && !dropped && !lost_subscriptions.empty();
  }
  [[nodiscard]] bool may_flush() const noexcept {
    return requests.may_send() || (events && events->may_send()) || may_resync() ||
           (dropped && !has_queued());
  }
  /// The client has closed a lane, and sent no more on the other.
  [[nodiscard]] bool is_over() const noexcept {
    return (requests.over || (events && events->over)) && !requests.readable &&
           !(events && events->readable) && !requests.at_porter_since;
  }
  [[nodiscard]] bool has_something_to_do() const noexcept {
    return may_flush() || may_read() || may_read_events() || last_packets || is_over() ||
           (may_answer() && rest);
  }
  /// The client has closed a lane: that ends both, once what it sent before, perhaps a goodbye, is
  /// read.
  void end(lane& one) noexcept {
    if (!std::exchange(one.over, true)) {
      for_each_lane([](lane& each) { each.readable = true; });
    }
  }
  template <typename Visit>
  void for_each_lane(Visit&& visit) {
    visit(requests);
    if (events) {
      visit(*events);
    }
  }

  transport::peer_credentials peer;
  core::principal principal;
  lane requests;
  std::optional<lane> events;  ///< once it is greeted
  /// The client's process may die while a child of it keeps the socket open.
  end_watch process;
  end_watch life;  ///< of its life pipe, which it gave with its hello
  turns::member turn;
  clock::time_point accepted;

  core::charges held;  ///< for what waits to be sent, and for what the peer has not read
  std::size_t queued_answers = 0;
  std::size_t queued_events = 0;
  /// Owed a resync once the queue is empty. Has room for all that a session may have.
  std::vector<std::uint64_t> lost_subscriptions;

  std::optional<int> last_packets;  ///< its process is dead: so many more are read, for a goodbye
  bool closed = false;
  bool muted = false;  ///< hears of no more events: it is about to end
  gpushm::fence fence = gpushm::fence::none;
  std::unique_ptr<fence_watch> ending;  ///< once closed, where its leases wait for a fence
};

/// Closes connections: what a part of the server must know that finds a reason to.
class connection_ender {
 public:
  connection_ender() = default;
  connection_ender(const connection_ender&) = delete;
  connection_ender& operator=(const connection_ender&) = delete;
  virtual ~connection_ender() = default;
  /// Closes the sockets; the session ends soon after, not within this call. Does not block. No
  /// effect the second time. Throws std::bad_alloc.
  virtual void close(connection& gone) = 0;
};

}  // namespace gpushm::broker_detail
