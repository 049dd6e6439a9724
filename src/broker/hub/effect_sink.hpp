// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string_view>

#include "broker/hub/counters.hpp"
#include "broker/hub/domain_recorder.hpp"
#include "broker/hub/outbox.hpp"
#include "broker/hub/timeline_pages.hpp"
#include "core/domain.hpp"

namespace gpushm::broker_detail {

/// Carries out what the domain wants (docs/adr/0020): slots, replies, questions and events, in that
/// order, which are then recorded. Continues without memory that it cannot allocate.
///
/// Events to many subscribers take several turns: the changes that not all have are a queue, so
/// that each subscriber gets its events in the order of the changes.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe. Runs on the broker's strand.
class effect_sink {
 public:
  /// Called when a slot of the state table changes.
  using slot_listener = void (*)(void* context,
                                 std::uint32_t,
                                 gpushm::generation,
                                 std::optional<segment_state>);

  /// All must outlive this object.
  effect_sink(core::domain& domain,
              outbox& out,
              domain_recorder& record,
              timeline_pages& pages,
              counters& count,
              slot_listener listener,
              void* listener_context)
      : domain_(domain),
        out_(out),
        record_(record),
        pages_(pages),
        counters_(count),
        listener_(listener),
        listener_context_(listener_context) {}
  effect_sink(const effect_sink&) = delete;
  effect_sink& operator=(const effect_sink&) = delete;
  ~effect_sink() = default;

  /// Carries out the domain's effects and queues the reply of the request that caused them.
  void settle(session* session = nullptr, prepared reply = {}) noexcept;
  /// Queues a failure. `why` null: out of memory.
  void fail(session* session,
            std::uint64_t id,
            std::uint32_t index,
            const error* why,
            lane_kind kind = lane_kind::requests) noexcept;
  /// Queues an error with `cause` and drops the session.
  void reject(session& session, std::uint64_t id, std::string_view cause);
  void drop(session& session, std::string_view why) noexcept;

  /// Some subscribers have not got all events.
  [[nodiscard]] bool has_events() const noexcept { return !unsent_.empty(); }
  /// The events of a number of changes from which on no request should cause more before some of
  /// them are queued: its own would wait behind those of all other sessions.
  [[nodiscard]] bool has_many_events() const noexcept { return unsent_.size() >= many_changes; }
  /// Queues some of those events.
  void send_events() noexcept;
  /// Number of changes so far that not all subscribers have got at once, and of those of them that
  /// all have by now.
  [[nodiscard]] std::uint64_t put_off() const noexcept { return put_off_; }
  [[nodiscard]] std::uint64_t caught_up() const noexcept { return put_off_ - unsent_.size(); }
  /// Call before what has changed is made permanent.
  void end_turn() noexcept;

 private:
  /// A change, and the subscriptions, or the holder, that have not got its event.
  struct unsent_change {
    core::change cause;
    core::domain::places left;
  };
  static constexpr core::domain::places holder_only{0, 1};
  static constexpr std::size_t many_changes = 8;
  /// The effort of one turn: 512 events, which take a millisecond.
  static constexpr std::size_t effort_per_turn = 512 * (core::domain::effort_of_event + 1);

  void send(session* target, prepared packet) noexcept;
  void deliver(core::open_reply reply) noexcept;
  [[nodiscard]] prepared opened(const core::open_reply& reply) const;
  [[nodiscard]] std::size_t send_questions(std::span<const core::question> questions) noexcept;
  void send_waiting(const core::open_waits& waits) noexcept;
  void send_event(core::change cause) noexcept;
  void send_event(session* session,
                  std::uint64_t subscription,
                  const core::change& change) noexcept;
  void send_some(unsent_change& unsent, std::size_t& effort) noexcept;

  core::domain& domain_;
  outbox& out_;
  domain_recorder& record_;
  timeline_pages& pages_;
  counters& counters_;
  slot_listener listener_;
  void* listener_context_;
  std::deque<unsent_change> unsent_;
  std::uint64_t put_off_ = 0;
  std::size_t effort_ = effort_per_turn;  ///< left of this turn
};

}  // namespace gpushm::broker_detail
