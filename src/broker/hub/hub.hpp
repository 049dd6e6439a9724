// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "broker/hub/closer.hpp"
#include "broker/hub/counters.hpp"
#include "broker/hub/domain_recorder.hpp"
#include "broker/hub/effect_sink.hpp"
#include "broker/hub/outbox.hpp"
#include "broker/hub/requests.hpp"
#include "broker/hub/timeline_pages.hpp"
#include "core/domain.hpp"
#include "gpushm/broker.hpp"
#include "succession/recorder/recorder.hpp"
#include "succession/recorder/segment_ledger.hpp"

namespace gpushm::broker_detail {

/// The broker without I/O: packets and descriptors in, packets and descriptors out. Decodes and
/// verifies requests, passes them to the domain and replies. Whatever a client sends, it gets an
/// reply or is dropped, without effect on others. A request that runs out of memory changes
/// nothing and is refused: everything it needs is allocated before the domain is called, and
/// carrying out the domain's effects allocates nothing.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe. Runs on the broker's strand,
/// except `statistics`.
class hub final {
 public:
  struct config {
    requests::config rules;
    core::limits limits;
    std::shared_ptr<core::process_budget> process = nullptr;
    /// If null, files are closed in the calling thread.
    std::shared_ptr<broker_detail::closer> closer = nullptr;
    /// Must outlive the hub. Null: nothing is recorded.
    succession::recorder* records = nullptr;
    /// Must outlive the hub. Null: nothing that was lost is handed back.
    succession::segment_ledger* ledger = nullptr;
    /// The domain of a predecessor. Null: an empty one.
    core::saved_state* from = nullptr;
  };
  using slot_listener = effect_sink::slot_listener;

  /// `out` must outlive the hub.
  hub(config options, outbox& out, slot_listener listener, void* listener_context);
  hub(const hub&) = delete;
  hub& operator=(const hub&) = delete;
  ~hub();

  /// Keeps the session until `lose`, `hang_up` or a session that resumes it erases it. Throws
  /// too_many_connections, too_many_descriptors, out_of_memory, share_exceeded; the session is then
  /// not kept.
  void accept(const std::shared_ptr<session>& created, const core::peer& peer);
  /// Throws what `accept` would throw now. Changes nothing.
  void check_room_for(const core::peer& peer) { domain_.check_room_for(peer); }
  /// Returns null if there is no such session, or it was erased.
  [[nodiscard]] session* find(core::session_id number) const noexcept {
    return session_of(domain_, number);
  }
  template <typename Visit>
  void for_each_session(Visit&& visit) const {
    domain_.for_each_payload([&](core::payload& each) { visit(static_cast<session&>(each)); });
  }
  /// How many descriptors a packet must have for its request to take them; 0: it takes none, and is
  /// refused if it has any. Changes nothing. Throws std::bad_alloc.
  [[nodiscard]] std::size_t descriptors_taken(const session& session,
                                              std::span<const std::byte> packet) const;
  /// `foreign`: number of descriptors that came with the packet and are not taken: they are not of
  /// a kind that members send, or not as many as the request takes. Returns false if the keeper is
  /// too busy for what the request needs, or it needs memory that is being freed: receive it again
  /// later. Nothing has changed then, also not `descriptors`, and the packet is no longer recorded
  /// as handled. Likewise if the request takes several turns: a part of it is done.
  bool receive(session& session,
               std::span<const std::byte> packet,
               std::vector<succession::kept_fd>&& descriptors,
               core::time_point now,
               std::size_t foreign = 0,
               lane_kind lane_kind = lane_kind::requests);
  /// The packet is complete, but this process had no room for its descriptors, or the keeper has
  /// not stored them because it does not read. Refuses the request.
  void receive_without_descriptors(session& session,
                                   std::span<const std::byte> packet,
                                   bool is_keeper_behind = false) noexcept;
  /// Returns the charges for memory that has been freed. Call it while `closer::is_freeing`.
  void collect_freed() noexcept;
  /// Closes descriptors of a packet that is not handled.
  void discard(std::vector<succession::kept_fd> descriptors) noexcept;
  /// A packet was too large: sends the session an error and drops it.
  void receive_truncated(session& session);
  /// Sends the session an error with `cause` and drops it.
  void violate(session& session, std::uint64_t id, std::string_view cause);
  /// For a session and the files of a segment that the predecessor had. Precondition: they exist.
  void restore(std::shared_ptr<session> created);
  void restore(gpushm::generation generation, std::shared_ptr<segment_files> files);
  /// For a segment that had ended while the predecessor had not closed its files yet: those that
  /// are left. They are charged, and closed when the result is destroyed. Throws std::bad_alloc.
  [[nodiscard]] std::shared_ptr<segment_files> restore_freed(
      gpushm::generation generation,
      const core::saved_segment& segment,
      std::vector<succession::kept_fd> chunks);
  /// A part of the segment's memory is gone (`segment_files::is_lost`): removes it.
  void lose_memory(gpushm::generation generation);
  /// See core::domain::remove_unheld.
  [[nodiscard]] bool remove_unheld(gpushm::generation generation);
  /// See core::domain::lose_device. Calls `done` once the state of all its segments is permanent,
  /// in a later turn. `done` must not throw.
  void lose_device(core::lost_device device, std::function<void()> done);
  /// Records everything that could not be recorded; if that fails again, `outbox::retry_recording`
  /// is called.
  void catch_up() noexcept;
  /// Queues some events that it `waits_for_events`, opens some names of `rest`, or takes some of
  /// what `resumes` is about. All must be over before the session's next request is received.
  void resume(session& session);
  /// While this is true, no request is received: who has sent one calls `send_events` in its turns.
  [[nodiscard]] bool has_many_events() const noexcept { return effects_.has_many_events(); }
  /// Queues some events that subscribers have not got.
  void send_events() noexcept;
  /// See core::domain.
  [[nodiscard]] bool has_work() const noexcept {
    return domain_.has_work() || effects_.has_events();
  }
  void work();
  void mute(const session& session) { domain_.mute(session.number); }
  [[nodiscard]] core::charges new_charges(const session& session) {
    return domain_.new_charges(session.number);
  }
  /// The connection is closed: ends some of its opens that wait. Returns true if more are left:
  /// call it again, in another turn, before `lose`.
  [[nodiscard]] bool stop_some(session& gone);
  /// The connection is closed. Returns true if it ended without a goodbye and has leases, which
  /// stay until its process can no longer write: call `hang_up` then. Returns false if the session
  /// is erased.
  [[nodiscard]] bool lose(session& gone, core::time_point now);
  /// The connection is closed, and its process has exited or sent a goodbye. Erases the session. No
  /// effect if it was erased already.
  void hang_up(core::session_id number);
  void set_fence_wait(core::session_id number, fence_wait wait) {
    domain_.set_fence_wait(number, wait);
    effects_.settle();
    finish();
  }

  /// See core::budget.
  void set_quotas(core::quotas values) { domain_.set_quotas(std::move(values)); }
  /// The time to hand back what an earlier broker has lost is over.
  void end_returns() noexcept;

  void tick(core::time_point now);
  [[nodiscard]] std::optional<core::time_point> next_deadline() const {
    return domain_.next_deadline();
  }
  [[nodiscard]] const core::domain& domain() const noexcept { return domain_; }
  /// Thread-safe.
  [[nodiscard]] broker_statistics statistics() const { return counters_.read(); }
  /// Thread-safe.
  [[nodiscard]] const request_counts& counted_requests() const noexcept {
    return counters_.requests();
  }
  /// Thread-safe.
  [[nodiscard]] report_counts reports() const noexcept { return counters_.reports(); }
  /// A connection was refused before it had a session.
  void count_refused_connection(errc why) noexcept {
    counters_.requests().refused(request_kind::connect, why);
  }
  /// Removed segments whose memory is not free yet.
  [[nodiscard]] closer::waiting waits_to_close() const noexcept {
    return closer_ ? closer_->what_waits() : closer::waiting{};
  }
  /// Thread-safe.
  [[nodiscard]] return_counts returns() const noexcept { return counters_.returns(); }
  /// The bytes of ended segments whose files the closer has: they are still charged. Thread-safe.
  [[nodiscard]] std::uint64_t freeing_bytes() const noexcept { return counters_.freeing_bytes(); }

 private:
  [[nodiscard]] bool receive_one(session& session,
                                 std::span<const std::byte> packet,
                                 std::vector<succession::kept_fd>& descriptors,
                                 std::size_t foreign,
                                 lane_kind lane_kind,
                                 request_kind& kind);
  void disconnect(core::session_id number);
  void wait_for_events(session& session, std::uint64_t put_off_before) const noexcept;
  /// At the end of every public function: makes what has changed permanent, and then sends replies.
  void finish() noexcept;
  void close(std::vector<succession::kept_fd> files) noexcept;

  std::vector<std::function<void()>> when_devices_are_lost_;
  std::shared_ptr<broker_detail::closer> closer_;
  outbox& out_;
  core::domain domain_;
  counters counters_;
  domain_recorder record_;
  timeline_pages pages_;
  effect_sink effects_;
  requests requests_;
  std::uint64_t work_waits_for_events_ = 0;  ///< as `session::waits_for_events`
};

}  // namespace gpushm::broker_detail
