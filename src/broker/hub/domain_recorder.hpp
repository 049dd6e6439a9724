// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <unordered_set>

#include "broker/hub/counters.hpp"
#include "broker/hub/outbox.hpp"
#include "broker/hub/segment_files.hpp"
#include "core/domain.hpp"
#include "protocol/wire/messages.hpp"
#include "succession/recorder/recorder.hpp"
#include "succession/recorder/segment_ledger.hpp"

namespace gpushm::broker_detail {

/// What is written down of a domain: its changes, in the journal for a successor, and its segments,
/// in the ledger for a broker after the loss of both broker and keeper. Neither sees a change that
/// the other does not see.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe. Runs on the broker's strand.
class domain_recorder {
 public:
  /// All must outlive this object. `records` null: nothing is recorded. `ledger` null: nothing that
  /// was lost is handed back.
  domain_recorder(succession::recorder* records,
                  succession::segment_ledger* ledger,
                  core::domain& domain,
                  outbox& out,
                  counters& count);
  domain_recorder(const domain_recorder&) = delete;
  domain_recorder& operator=(const domain_recorder&) = delete;
  ~domain_recorder() = default;

  /// The domain of a predecessor is complete.
  void end_continuing(const core::saved_state& predecessor) noexcept;
  /// Records the domain's changes.
  void record(core::effects& changes) noexcept;
  /// `changed`: the index of the first chunk that is not recorded yet.
  void record(const segment_files& files, std::size_t changed = 0) noexcept;
  /// Returns the charges for what has been closed, which is not recorded any longer. Returns false
  /// if there is nothing new.
  bool collect(closer& closer) noexcept {
    return closer.collect([this](gpushm::generation each) { is_closed(each); });
  }
  /// The files of a segment that has ended are closed.
  void is_closed(gpushm::generation generation) noexcept;
  /// The predecessor has recorded that a segment has ended whose files are not closed. Throws
  /// std::bad_alloc.
  void continue_freeing(gpushm::generation generation) { freeing_.insert(generation); }
  /// The segment is new, has another page, or has ended.
  void note(gpushm::generation generation, bool exists) noexcept;
  /// While subscribers have not got all events, a successor must give each of them a resync.
  void set_events_left(bool any) noexcept;
  /// Makes what is recorded permanent. Returns false if something could not be recorded: nothing
  /// may be sent before `catch_up` has recorded everything.
  [[nodiscard]] bool commit() noexcept;
  /// Records everything that exists.
  void catch_up() noexcept;

  /// The first packet of that lane, which was recorded as handled, is to be received again.
  void is_not_handled(core::session_id member, lane_kind kind) noexcept;

  /// The keeper gets a copy. Throws as `recorder::keep`.
  [[nodiscard]] succession::kept_fd keep(base::guarded_fd file);

  /// Returns nullopt if the member's uid is not known, or the segment cannot be handed back.
  [[nodiscard]] std::optional<wire::receipt> receipt_for(core::session_id member,
                                                         const core::segment& step) const;
  /// For a new segment. Names of what was lost wait for those that have it: throws as
  /// `segment_ledger::check_name`. `may_pass`: the member need not wait.
  void check_name(std::string_view name, const core::peer& peer, bool may_pass) const;
  /// Throws as `segment_ledger::check_return`.
  [[nodiscard]] core::lost_segment check_return(const wire::reserve& offered,
                                                const core::peer& peer) const;
  /// Another member than its creator has begun to hand it back.
  void note_return(gpushm::generation generation, const core::peer& peer);
  /// Whether a member that is at handing `step` back gives way to `peer`.
  [[nodiscard]] bool gives_way(const core::lost_segment& step,
                               const core::peer& peer) const noexcept;
  /// Throws already_exists if another member is at handing it back, to which `session` has given
  /// way: the generation alone does not tell the reservations of the two apart.
  void check_returner(gpushm::generation generation, core::session_id session) const;
  /// Throws as `check_returner` and `segment_ledger::check_publication`.
  void check_publication(const wire::publish& message, core::session_id session) const;
  /// Returns the identity of a timeline page that is handed back. It is unknown without a ledger.
  [[nodiscard]] succession::page_identity page_of(gpushm::generation generation) const noexcept;
  /// The time to hand back what an earlier broker has lost is over.
  void end_returns() noexcept;

 private:
  /// The segment has ended. Its files are charged until they are closed, even by a successor.
  void record_end(gpushm::generation generation);
  bool record_freeing(gpushm::generation generation) noexcept;
  /// All parts.
  void erase_files(gpushm::generation generation) noexcept;

  succession::recorder off_;  ///< if there is no other
  succession::recorder& recorder_;
  succession::segment_ledger* ledger_;
  core::domain& domain_;
  outbox& out_;
  counters& counters_;
  /// Segments that have ended, and whose files are not closed: their last record is kept.
  std::unordered_set<gpushm::generation> freeing_;
  bool are_events_left_ = false;
};

}  // namespace gpushm::broker_detail
