// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "broker/hub/hub.hpp"
#include "broker/hub/turns.hpp"
#include "broker/session/end_watch.hpp"
#include "broker/session/fence_watch.hpp"
#include "broker/session/lane.hpp"
#include "core/segment.hpp"
#include "protocol/transport/credentials.hpp"

namespace gpushm::broker_detail {

/// One client's session: its two sockets and its pending work; once the connection is closed, the
/// fence that its leases wait for. Runs on the server's thread.
struct connection final : session, std::enable_shared_from_this<connection> {
  using clock = std::chrono::steady_clock;

  /// `records` must outlive it.
  connection(asio::io_context& io,
             core::session_id id,
             succession::kept_fd connected,
             succession::recorder& records)
      : session(id),
        requests(io, *this, lane_kind::requests, std::move(connected)),
        recorded_in(records) {}
  connection(const connection&) = delete;
  connection& operator=(const connection&) = delete;
  /// Erases its records.
  ~connection() override;

  /// Upper bound of queued replies beyond which no more requests are read. Questions to exporters
  /// do not count: an exporter with unread questions must be able to send its replies.
  static constexpr std::size_t max_queued_replies = 16;

  [[nodiscard]] bool may_reply() const noexcept { return queued_replies < max_queued_replies; }
  [[nodiscard]] bool may_read() const noexcept {
    return (requests.readable || requests.handled) && !dropped &&
           !requests.receiving_descriptors_since && may_reply() && !rest && !resumes &&
           waits_for_events == 0;
  }
  /// With a request that takes several turns.
  [[nodiscard]] bool may_go_on() const noexcept {
    return (may_reply() && rest) || resumes || waits_for_events != 0;
  }
  [[nodiscard]] bool may_read_events() const noexcept {
    return events && (events->readable || events->handled) && !dropped && waits_for_events == 0;
  }
  [[nodiscard]] bool has_queued() const noexcept {
    return !requests.queue.empty() || (events && !events->queue.empty());
  }
  [[nodiscard]] bool may_resync() const noexcept {
    return events && !events->blocked && !events->send_closed && !dropped &&
           !lost_subscriptions.empty();
  }
  [[nodiscard]] bool may_flush() const noexcept {
    return requests.may_send() || (events && events->may_send()) || may_resync() ||
           (dropped && !has_queued());
  }
  /// The client has closed a lane and sent nothing more on the other.
  [[nodiscard]] bool is_over() const noexcept {
    return (requests.over || (events && events->over)) && !requests.readable &&
           !(events && events->readable) && !requests.receiving_descriptors_since;
  }
  [[nodiscard]] bool has_something_to_do() const noexcept {
    return may_flush() || may_read() || may_read_events() || last_packets || is_over() ||
           may_go_on();
  }
  /// The client has closed a lane, which ends both once packets sent before, possibly a goodbye,
  /// are read.
  void end(lane& ended) noexcept {
    if (!std::exchange(ended.over, true)) {
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

  [[nodiscard]] static journal::record_key key_of_handled(const lane& lane) noexcept {
    return records::key_of(
        records::kind::handled, lane.of.number, lane.kind == lane_kind::events ? 1 : 0);
  }
  /// Creates the sockets of its event lane, `next_events`, and stores them; no effect the second
  /// time. Throws as recorder::keep, and too_many_descriptors; another call continues.
  void prepare_events();

  /// Records its state, in the next commit. No effect before its Hello or after its end.
  void record() const noexcept;
  void record_events() const noexcept;

  transport::peer_credentials peer;
  core::principal principal;
  lane requests;
  std::optional<lane> events;  ///< set by Hello
  /// The broker's and the client's end of it, before that.
  std::optional<std::pair<succession::kept_fd, succession::kept_fd>> next_events;
  succession::recorder& recorded_in;
  // In the keeper.
  records::descriptor_id process_id = 0;
  records::descriptor_id life_id = 0;
  /// `rest->next` as recorded; nullopt: `rest` is not recorded.
  mutable std::optional<std::uint32_t> recorded_next;
  /// The client's process may die while a child of it keeps the socket open.
  end_watch process;
  end_watch life;  ///< of its life pipe, received with Hello
  turns::member turn;
  clock::time_point accepted;

  core::charges held;  ///< for queued packets and for sent packets that are unread
  std::size_t queued_replies = 0;
  std::size_t queued_events = 0;
  /// Subscriptions owed a resync once the queue is empty. Capacity: all subscriptions of a session.
  std::vector<std::uint64_t> lost_subscriptions;

  std::optional<int> last_packets;  ///< set when its process died: packets left to read
  bool closed = false;
  bool are_events_unrecorded = false;  ///< `sender::record_events` does that
  bool muted = false;                  ///< gets no more events: it is about to end
  gpushm::fence fence = gpushm::fence::none;
  std::unique_ptr<fence_watch> ending;  ///< set once closed, if its leases wait for a fence
  bool is_unwatched = false;            ///< there was no memory to wait for the fence

 private:
  void record_rest() const noexcept;
};

/// The interface through which parts of the server close connections.
class connection_ender {
 public:
  connection_ender() = default;
  connection_ender(const connection_ender&) = delete;
  connection_ender& operator=(const connection_ender&) = delete;
  virtual ~connection_ender() = default;
  /// Closes the sockets; the session ends soon after, not within this call. Does not block. No
  /// effect the second time. Throws std::bad_alloc.
  virtual void close(connection& gone) = 0;
  /// For what `received_packet::closed` says.
  virtual void socket_closed(std::uint64_t /*number*/) noexcept {}
};

}  // namespace gpushm::broker_detail
