// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/segments/registered_names.hpp"
#include "core/budget.hpp"
#include "core/deadlines.hpp"
#include "core/effects.hpp"
#include "core/generation_times.hpp"
#include "core/segment.hpp"
#include "core/slots.hpp"
#include "core/versions.hpp"
#include "gpushm/client.hpp"
#include "gpushm/error.hpp"
#include "gpushm/types.hpp"

namespace gpushm::core {

/// The size of an address space. Members only claim sizes, so this keeps their sum from
/// overflowing.
inline constexpr std::uint64_t largest_segment_bytes = std::uint64_t{1} << 48U;

struct limits {
  std::uint32_t max_segments = 65'536;
  /// The quota of the host's memory, and of each GPU's; 0: no limit.
  std::uint64_t quota_bytes = 0;
  std::uint64_t quota_bytes_per_principal = 0;
  std::uint64_t max_descriptors = 0;   ///< for chunks and connections; 0: no limit
  std::uint64_t max_memory_bytes = 0;  ///< kept by the broker for members; 0: no limit
  std::uint64_t memory_copies = 1;     ///< of what is kept: 2 if a journal also has each object
  std::uint32_t max_connections = 0;   ///< 0: no limit
  std::uint32_t descriptors_per_session = 4;         ///< two sockets, pidfd and life pipe
  std::uint32_t descriptors_per_ending_session = 2;  ///< without the sockets
  std::uint32_t max_pending_opens = 4'096;           ///< per session
  std::uint32_t max_waiting_opens = 65'536;          ///< of all sessions
  std::uint32_t max_subscriptions = 64;              ///< per session
  std::uint32_t max_all_subscriptions = 8'192;       ///< each event scans all of them
  std::uint32_t max_confirmations = 128;             ///< unanswered, per exporter
  std::chrono::milliseconds confirm_timeout{2'000};  ///< for an exporter to reply
  bool names_changes = false;                        ///< fills `effects::records`
  gpushm::generation first_generation = 1;           ///< of a new domain
  std::uint32_t max_dead_names = 1'024;  ///< remembered, of segments whose exporter or GPU is gone
  version_table::limits versions = {};
};

using base::reservation;

// Defined in saved_state.hpp.
struct saved_state;
struct saved_numbers;
struct saved_session;
struct saved_segment;
struct saved_metadata;
struct saved_lease;
struct saved_subscription;
struct saved_open;
struct saved_confirmation;
struct saved_end;
struct saved_unkept;
struct saved_dead_name;
/// One object of a domain; monostate: there is no such object.
using saved_value = std::variant<std::monostate,
                                 saved_numbers,
                                 saved_session,
                                 saved_segment,
                                 saved_metadata,
                                 saved_lease,
                                 saved_subscription,
                                 saved_open,
                                 saved_confirmation,
                                 saved_end,
                                 saved_unkept,
                                 saved_dead_name,
                                 saved_version,
                                 saved_alias>;

/// A version to create.
struct version_request {
  std::string base;
  std::uint64_t number = 0;  ///< 0: the next one
  std::vector<std::string> parts = {};
  retention keep = {};
};

/// What a name refers to.
struct resolved_version {
  std::uint64_t number = 0;
  alias_word alias = {};  ///< generation 0: the name has a number
};

struct version_facts {
  std::uint64_t number = 0;
  version_state state = version_state::building;
  bool withdrawn = false;
  std::uint64_t bytes = 0;
  std::size_t held = 0;  ///< segments of which processes have leases
  std::vector<std::string> aliases;
};

/// One open. `request` and `index` within it identify the reply.
struct open_request {
  std::uint64_t request = 0;
  std::uint32_t index = 0;
  std::string name;
  std::uint64_t expected_size_bytes = 0;
  std::optional<time_point> deadline;  ///< wait for the name until then; nullopt: do not wait
  time_point asked{};                  ///< when the broker received it
  gpushm::generation generation = 0;   ///< only this one; 0: the current one of that name
  bool waits = false;                  ///< already in `effects::waits`
  friend bool operator==(const open_request&, const open_request&) = default;
};

/// A segment that was lost with its domain.
struct lost_segment {
  gpushm::generation generation = 0;
  std::uint32_t creator_uid = 0;
  bool is_creator = false;              ///< its creator hands it back
  core::principal creator_principal{};  ///< an empty key: not known
};

/// Whether `right` has the uid of `left`, and its principal where that is vouched for. False if a
/// uid is not known, and if one of them only is foreign.
[[nodiscard]] bool is_same_member(const peer& left, const peer& right);

/// What is charged for a segment as long as it exists, without its metadata and the leases of
/// others. The same when it is reserved, handed back and continued.
[[nodiscard]] budget::amounts cost_of(const reservation& reservation);

using base::lost_device;

/// An exporter's reply about its exporter-bound memory.
enum class verdict : std::uint8_t { unchanged, changed, not_shared };

/// The leases of a segment that wait for a fence.
struct ending_leases {
  std::uint32_t count = 0;
  std::int32_t pid = 0;  ///< of the oldest
  time_point since;
  fence_wait waits_for = fence_wait::process;
};

/// Counts of a domain's segments, in several turns: segments that begin or end meanwhile may be
/// among them or not.
struct segment_survey {
  struct part {
    std::uint64_t segments = 0;
    std::uint64_t bytes = 0;
    void add(const segment& segment) noexcept {
      ++segments;
      bytes += segment.allocated_bytes;
    }
    friend bool operator==(const part&, const part&) = default;
  };
  static constexpr std::size_t kinds = static_cast<std::size_t>(backend::descriptor) + 1;

  std::array<part, kinds> by_kind{};       ///< `backend`
  std::uint64_t channels = 0;              ///< with a producer
  part unheld;                             ///< persistent, and no process has a lease
  part ending;                             ///< have leases that wait for a fence
  std::optional<time_point> ending_since;  ///< the oldest of those leases
  std::uint32_t next_slot = 0;
};

/// The state of one domain: segments, leases, quotas, waiting opens, subscriptions. Pure: no I/O,
/// no clock, no threads. Every function either completes or throws `gpushm::error` or
/// `std::bad_alloc` and changes nothing. Functions that end something (`disconnect`, `lose`,
/// `release`, `confirmed`, `work`, `tick`) allocate no memory and do not throw. Errors carry cause
/// and next step; the client adds operation and object.
///
/// Side effects are collected in `pending()`: the caller carries them out and clears it after each
/// call, before the next.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe. Runs on the broker's strand.
class domain {
 public:
  /// The operator, of uid `owner_uid`, may manage every segment. `process`: shared by the brokers
  /// of one process; null: this is the only one.
  domain(std::string name,
         std::uint32_t owner_uid,
         const limits& bounds,
         std::shared_ptr<process_budget> process = nullptr);

  /// Continues from the state of another domain. Segments and sessions have no payloads. What
  /// exists is charged without a check. The metadata is moved out of `state`. Throws
  /// invalid_argument if parts of the state contradict each other.
  domain(std::string name,
         std::uint32_t owner_uid,
         const limits& bounds,
         std::shared_ptr<process_budget> process,
         saved_state& state);
  /// Precondition: `pending()` is empty. Throws std::bad_alloc.
  [[nodiscard]] saved_state save() const;
  /// Calls `visit` for each object of `save`, in another order, without a copy of them all. Throws
  /// std::bad_alloc, and what `visit` throws.
  void visit_saved(const std::function<void(const record_name&, saved_value)>& visit) const;
  /// One object as it is now. Throws std::bad_alloc.
  [[nodiscard]] saved_value saved(const record_name& name) const;

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] const limits& bounds() const noexcept { return limits_; }
  [[nodiscard]] effects& pending() noexcept { return effects_; }
  /// Includes what `pending()` is to show.
  [[nodiscard]] const slot_table& slots() const noexcept { return slots_; }

  /// It is `now`, an earlier one than before has no effect. The only place where the time enters:
  /// before each call that depends on it (`lose`, `tick`).
  domain& at(time_point now) noexcept {
    now_ = std::max(now_, now);
    if (generation_times_.is_empty()) {
      generation_times_.note(next_generation_, now_);
    }
    return *this;
  }
  [[nodiscard]] time_point now() const noexcept { return now_; }

  /// `payload_of` returns `payload` until the session is erased: by `disconnect`, by `lose` when it
  /// returns false, and for `lost` by the last `resume_some`. Throws too_many_connections,
  /// too_many_descriptors, out_of_memory, share_exceeded.
  void connect(session_id session,
               const peer& identity,
               std::shared_ptr<core::payload> payload = nullptr);
  /// Throws what `connect` would throw now. Changes nothing.
  void check_room_for(const peer& peer);
  /// Returns null if there is no such session, or it was connected without a payload.
  [[nodiscard]] core::payload* payload_of(session_id session) const noexcept;
  /// Precondition: the session is connected or ending.
  [[nodiscard]] const peer& peer_of(session_id session) const;
  /// Whether it may manage every segment: it has the broker's uid, and is not `peer::is_foreign`.
  [[nodiscard]] bool is_operator(session_id session) const;
  /// Calls `visit(payload&)` for each session that has a payload. `visit` must not change the
  /// domain.
  template <typename Visit>
  void for_each_payload(Visit&& visit) const {
    for (const auto& [id, each] : sessions_) {
      if (each.payload) {
        visit(*each.payload);
      }
    }
  }
  /// Ends some of the session's opens that wait, without a reply, and takes some of what it
  /// resumes. Returns false when none is left. Called in turns until then, before `lose` or
  /// `disconnect`, which end what is left at once.
  bool stop_some(session_id session);
  /// Ends everything the session has: requests, subscriptions and the first leases immediately, the
  /// other leases in `work`. `clean`: it sent a goodbye, so no death is reported.
  void disconnect(session_id session, bool clean);
  /// The connection closed without a goodbye, and its process may still write: requests and
  /// subscriptions end now; leases, names and charges stay until `disconnect`, called after the
  /// fence. Returns false if it has no leases; the session is then erased.
  bool lose(session_id session);
  [[nodiscard]] bool is_ending(session_id session) const;
  /// Sets what `ending_of` reports. No effect unless the session is ending.
  void set_fence_wait(session_id session, fence_wait wait);
  [[nodiscard]] std::optional<ending_leases> ending_of(const segment& segment) const;
  /// Adds some more segments. Returns false when all are counted. The work of one call is bounded.
  [[nodiscard]] bool survey_some(segment_survey& survey) const;
  /// Ends leases of ending sessions on the segment without a fence: for the operator all of them,
  /// for a member that may manage the segment those of its own principal. Throws no_such_segment,
  /// permission_denied, invalid_argument (none of its leases waits for a fence). Returns true if
  /// more are left: another call, in another turn, ends some of them.
  bool unfence(session_id session, std::string_view name);
  /// Begins to transfer everything that the ending session `lost` has to the new session `session`.
  /// The end of `lost` has no effect from then on. Returns false if `lost` is not ending, is
  /// resumed already, or belongs to another principal.
  bool resume(session_id lost, session_id session);
  /// Transfers some of the rest. Returns false when none is left; `lost` is then erased. Called in
  /// turns until then, before other requests of the session.
  bool resume_some(session_id session) noexcept;
  [[nodiscard]] bool is_resuming(session_id session) const;
  /// The generations that the client of a resumed session still has, with the number of replies for
  /// each. Leases named in none of its calls end after the last call (`more` false).
  void keep(session_id session,
            std::span<const std::uint64_t> generations,
            std::span<const std::uint64_t> counts,
            bool more);

  /// Does a bounded part of the remaining work for ended sessions and for publications with many
  /// waiting opens. Returns false when none is left.
  bool work();
  [[nodiscard]] bool has_work() const noexcept {
    return !ended_.empty() || !unkept_.empty() || !due_.empty() || !to_refuse_.empty() ||
           !lost_devices_.empty() || versions_.has_work();
  }
  /// Empty charges on the session's account, for other things kept for it. Precondition: the
  /// session is connected.
  [[nodiscard]] charges new_charges(session_id session);
  /// The same on the account that pays for the segment.
  [[nodiscard]] charges new_charges(const segment& segment);
  /// Everything that a segment of this creator is charged for, without a check: it exists already.
  /// Throws std::bad_alloc.
  [[nodiscard]] std::shared_ptr<charges> charges_of_existing(const reservation& reservation,
                                                             const peer& creator);
  /// The session is about to end with others of its process: it receives no more events.
  void mute(session_id session);

  /// `back`: not a new segment, but one of an earlier domain of this name that was lost; the
  /// session hands it back. Precondition then: no segment of this domain has had that generation,
  /// and it is lower than those of new segments. A published segment may have the name if
  /// `expected.replaces` is its generation and the session may manage it: it keeps the name until
  /// the new one is published. Throws invalid_argument, already_exists, gone_or_replaced (another
  /// generation than `expected.replaces` has the name), permission_denied (the session may not
  /// manage that one), quota_exceeded, too_many_segments, too_many_descriptors.
  const segment& reserve(session_id session,
                         const reservation& expected,
                         const std::optional<lost_segment>& back = {});
  /// Precondition: a segment of this generation exists.
  void set_payload(gpushm::generation generation, std::shared_ptr<core::payload> payload);
  /// Returns null if there is none of this generation.
  [[nodiscard]] const segment* find_segment(gpushm::generation generation) const noexcept {
    const auto at = segments_.find(generation);
    return at == segments_.end() ? nullptr : at->second.get();
  }
  /// Calls `visit(const segment&)` for segments in slots from `slot` on, until `effort` is used up:
  /// each slot takes 1 of it, and a segment also the std::size_t that `visit` returns. Returns the
  /// slot to continue from; nullopt if there is none.
  template <typename Visit>
  [[nodiscard]] std::optional<std::uint32_t> visit_segments(std::uint32_t slot,
                                                            std::size_t effort,
                                                            Visit&& visit) const {
    for (; effort != 0; ++slot) {
      if (slot >= slots_.end()) {
        return std::nullopt;
      }
      --effort;
      const segment* const at = find_segment(slots_.word_of(slot).generation);
      if (at != nullptr && at->slot == slot) {
        effort -= std::min<std::size_t>(effort, visit(*at));
      }
    }
    return slot;
  }
  /// The principals that have leases, each once, at most `max_names`; of many leases only some are
  /// looked at. Throws std::bad_alloc.
  [[nodiscard]] std::vector<std::string> holders_of(const segment& segment,
                                                    std::size_t max_names) const;
  /// When a segment was created. Precondition: `at` was called.
  [[nodiscard]] generation_times::creation creation_of(
      gpushm::generation generation) const noexcept {
    return generation_times_.of(generation);
  }
  /// Precondition: a segment of this generation exists.
  [[nodiscard]] const segment& segment_of(gpushm::generation generation) const {
    return *segments_.at(generation);
  }
  /// After a restart. Precondition: the session exists.
  void set_session_payload(session_id session, std::shared_ptr<core::payload> payload);
  /// Returns the segment if `count` chunks, starting at index `first`, may be attached to it.
  /// Throws stale_generation, permission_denied, wrong_descriptor_count.
  [[nodiscard]] const segment& check_attach(session_id session,
                                            gpushm::generation generation,
                                            std::uint32_t first,
                                            std::size_t count) const;
  /// Counts the chunks as attached, under the same conditions.
  const segment& attach(session_id session,
                        gpushm::generation generation,
                        std::uint32_t first,
                        std::size_t count);
  /// A segment that this one replaces is removed with the same call: the name is never free between
  /// them. Throws stale_generation, permission_denied, wrong_descriptor_count (chunks are missing),
  /// already_published, segment_removed, message_too_large.
  void publish(session_id session,
               gpushm::generation generation,
               std::span<const std::byte> metadata);
  /// The open gets exactly one reply, now or later, unless the session ends or the open is
  /// cancelled first. If later, it is in `effects::waits` after this call.
  void open(session_id session, const open_request& request);
  /// Drops the waiting opens of that request (`index`: only that name); they get no reply.
  /// Returns false if none waits.
  bool cancel(session_id session,
              std::uint64_t request,
              std::optional<std::uint32_t> index = {}) noexcept;
  /// Drops some of the waiting opens of that request if they are more than one turn ends. Returns
  /// false if they are not: `cancel` drops them. Called in turns until then, before `cancel`.
  bool cancel_some(session_id session, std::uint64_t request) noexcept;
  /// The exporter's reply. Late and unsolicited replies are ignored. Call `send_questions` after
  /// one or several.
  void confirmed(session_id exporter, std::uint64_t confirmation, verdict result);
  /// Sends questions for which there was no room before; replies have made room.
  void send_questions(session_id exporter) noexcept;
  /// The exporter's replies may be lost: repeats every unanswered question.
  void resend_questions(session_id exporter) noexcept;
  /// The question could not be sent for lack of memory: refuses its open.
  void question_not_sent(const question& question);
  /// A release of a segment that the session does not hold is ignored: it may cross a removal.
  /// `never_mapped`: the memory was not used. If all parts of a lease are released this way,
  /// subscribers get no `released` event.
  void release(session_id session,
               gpushm::generation generation,
               std::uint32_t count,
               bool never_mapped = false);
  /// `generation` 0: the current one of that name, which is the published one if there are two.
  /// Throws no_such_segment, gone_or_replaced (another generation has the name),
  /// permission_denied.
  void remove(session_id session, std::string_view name, gpushm::generation generation = 0);

  // ---- versions: core/versions.hpp and docs/adr/0046 ----

  /// Returns its number. Throws invalid_argument, already_exists (a segment has the name),
  /// permission_denied (another member owns the name), share_exceeded, too_many_segments,
  /// out_of_memory.
  std::uint64_t create_version(session_id session, const version_request& wanted);
  /// `latest` refers to it no longer. Throws no_such_segment, permission_denied.
  void withdraw_version(session_id session, std::string_view base, std::uint64_t number);
  /// Ends it; `work` withdraws its segments. Throws no_such_segment, permission_denied,
  /// invalid_argument (an alias other than `latest` refers to it).
  void remove_version(session_id session, std::string_view base, std::uint64_t number);
  /// Throws no_such_segment, permission_denied, invalid_argument (not published, or `latest`),
  /// share_exceeded, too_many_segments.
  void move_alias(session_id session,
                  std::string_view base,
                  std::string_view alias,
                  std::uint64_t number);
  /// Throws no_such_segment, permission_denied, invalid_argument (`latest`).
  void remove_alias(session_id session, std::string_view base, std::string_view alias);
  /// The published version that a name refers to, with a number, an alias, or neither: `latest`.
  /// Throws invalid_argument, no_such_segment.
  [[nodiscard]] resolved_version resolve(std::string_view name) const;
  /// Those of a name, the highest first; none: there is no such name.
  [[nodiscard]] std::vector<version_facts> versions_of(std::string_view base) const;
  struct alias_facts {
    std::string name;  ///< "BASE@ALIAS"
    std::uint64_t number = 0;
  };
  /// Aliases that refer to a version, at most `count`, with at most `bytes` of names. `others`: the
  /// number of aliases that are left out, those that refer to nothing included.
  [[nodiscard]] std::vector<alias_facts> aliases(std::size_t count,
                                                 std::size_t bytes,
                                                 std::size_t& others) const;

  /// Its descriptors are gone: as if its creator removed it. Leases stay, and mappings keep the
  /// memory. Precondition: a segment of this generation exists.
  void lose_memory(gpushm::generation generation);
  /// For operators: as if its creator removed it, if it is persistent and published and nobody has
  /// a lease. Returns false, and has done nothing, if that is not so, also if there is no such
  /// segment.
  [[nodiscard]] bool remove_unheld(gpushm::generation generation);
  /// The memory that exists on that GPU is gone for good: `work` gives its segments the state
  /// `device_lost`, and their names are free. Segments that are created from now on are not
  /// affected. Throws invalid_argument (no UUID), too_many_requests, std::bad_alloc.
  void lose_device(lost_device device);
  /// Whether `work` has not got to all segments of the devices that were lost.
  [[nodiscard]] bool is_losing_devices() const noexcept { return !lost_devices_.empty(); }

  /// A segment that the session leases, to send more of its chunks. Throws stale_generation.
  [[nodiscard]] const segment& held(session_id session, gpushm::generation generation) const;
  /// `generation` as in `remove`. Throws no_such_segment, gone_or_replaced.
  [[nodiscard]] const segment& stat(session_id session,
                                    std::string_view name,
                                    gpushm::generation generation = 0) const;
  /// Calls `visit` for the segments that the session may see, whose names start with `prefix` and
  /// come after `after`, in order of name, until `visit` returns false. One of each name, so that a
  /// name is a place to continue from: a segment that is to replace a published one is left out,
  /// and so are registered descriptors unless the prefix is theirs.
  template <typename Visit>
  void list(session_id session,
            std::string_view prefix,
            std::string_view after,
            Visit&& visit) const {
    static const names none;
    const auto session_at = sessions_.find(session);
    const names& own = session_at == sessions_.end() ? none : session_at->second.unpublished;
    const auto from = [&](const names& names) {
      return after < prefix ? names.lower_bound(prefix) : names.upper_bound(after);
    };
    const auto matches = [&](const names& names, names::const_iterator& position) {
      if (position != names.end() && base::is_registered_name(position->first) &&
          !base::is_shown(position->first, prefix)) {
        position = names.lower_bound(base::after_registered_names);  // there may be many
      }
      return position != names.end() && position->first.substr(0, prefix.size()) == prefix;
    };
    // Never visits segments that the session may not see: there may be many.
    auto seen = from(published_);
    auto hidden = from(own);
    for (;;) {
      const bool more_seen = matches(published_, seen);
      const bool more_hidden = matches(own, hidden);
      if (!more_seen && !more_hidden) {
        return;
      }
      if (more_seen && more_hidden && seen->first == hidden->first) {
        ++hidden;
        continue;
      }
      const bool first = more_seen && (!more_hidden || seen->first < hidden->first);
      if (!visit(*(first ? seen++ : hidden++)->second)) {
        return;
      }
    }
  }

  /// Throws too_many_requests, invalid_argument (a number in use, a prefix that is too long).
  void subscribe(session_id session, std::uint64_t subscription, std::string prefix);
  void unsubscribe(session_id session, std::uint64_t subscription);
  /// Subscriptions in order: a later one has a larger place, also if earlier ones end.
  struct places {
    std::uint64_t next = 0;
    std::uint64_t end = 0;
    [[nodiscard]] bool empty() const noexcept { return next == end; }
  };
  /// Those that exist now.
  [[nodiscard]] places subscribers() const noexcept { return {0, next_place_}; }
  static constexpr std::size_t effort_of_event = 16;
  /// Takes subscriptions out of `left`, and calls `visit(session, subscription)` for those of them
  /// that still exist and match the name. Ends early when `effort` is 0: each subscription takes 1
  /// of it, and one that matches `effort_of_event` more. `visit` must not change subscriptions.
  template <typename Visit>
  void visit_subscribers(std::string_view name,
                         places& left,
                         std::size_t& effort,
                         Visit&& visit) const {
    auto at = std::lower_bound(
        subscriptions_.begin(),
        subscriptions_.end(),
        left.next,
        [](const subscription& each, std::uint64_t place) { return each.place < place; });
    for (; at != subscriptions_.end() && at->place < left.end; ++at) {
      if (effort == 0) {
        left.next = at->place;
        return;
      }
      --effort;
      if (base::is_shown(name, at->prefix)) {
        effort -= std::min(effort, effort_of_event);
        visit(at->session, at->id);
      }
    }
    left.next = left.end;
  }

  /// Fails some of the opens whose deadline has passed, the earliest first. If some are left, which
  /// are the next turn's, `next_deadline` is in the past.
  void tick();
  [[nodiscard]] std::optional<time_point> next_deadline() const noexcept {
    return deadlines_.next();
  }

  [[nodiscard]] std::size_t segment_count() const noexcept { return segments_.size(); }
  /// Without ending sessions.
  [[nodiscard]] std::size_t session_count() const noexcept {
    return sessions_.size() - ending_sessions_;
  }
  [[nodiscard]] std::size_t ending_count() const noexcept { return ending_sessions_; }
  [[nodiscard]] std::size_t lease_count() const noexcept { return lease_count_; }
  [[nodiscard]] std::size_t waiting_count() const noexcept { return waiting_.size(); }
  [[nodiscard]] std::uint64_t allocated_bytes() const noexcept {
    return budget_.used(resource::host_bytes) + budget_.used(resource::gpu_bytes);
  }
  [[nodiscard]] std::uint64_t descriptors() const noexcept {
    return budget_.used(resource::descriptors);
  }
  /// See `budget`.
  void set_quotas(quotas values) { budget_.set_quotas(std::move(values)); }
  [[nodiscard]] const core::budget& budget() const noexcept { return budget_; }

 private:
  using names = std::map<std::string_view, segment*>;  // views into segments

  struct waiting_open {
    session_id session = 0;
    open_request request;
  };
  /// An open that waits for the exporter's confirmation.
  struct waiting_confirmation {
    session_id session = 0;
    open_request request;
    gpushm::generation generation = 0;
    time_point deadline;
    session_id exporter = 0;
    bool sent = false;  ///< in the exporter's `awaiting_reply`, not in its `queued_questions`
  };
  struct subscription {
    session_id session = 0;
    std::uint64_t id = 0;
    std::string prefix;
    std::uint64_t place = 0;
  };
  /// Saved: never renumber.
  enum class end_kind : std::uint8_t {
    goodbye = 0,
    death = 1,
    unfenced = 2,  ///< as a death, but it may still write
  };
  /// An ended session that still has leases, or lists of which each turn frees a part.
  struct ended_session {
    session_id session = 0;
    actor who;
    end_kind how = end_kind::goodbye;
    std::set<gpushm::generation> left;
    std::set<gpushm::generation> created;  ///< also those that are in `left`
    std::set<std::uint64_t> building;      ///< versions that it was building
    charges held;                          ///< memory of the leases in `left`
    // Only to be freed. The names may be those of segments that no longer exist.
    names unpublished;
    std::set<std::uint64_t> awaiting_reply;
    std::set<std::uint64_t> queued_questions;

    [[nodiscard]] bool has_leases() const noexcept {
      return !left.empty() || !created.empty() || !building.empty();
    }
    /// Returns true if more is left.
    bool free_some() noexcept;
  };
  /// Opens that wait for one name. The list node for `due_` is allocated here, so that moving it
  /// there allocates nothing.
  struct name_waiters {
    std::set<std::uint64_t> ids;
    std::list<std::string> place;  ///< the name; empty while it is in `due_`
  };
  /// Opens that wait for the exporter of one segment. The list node for `to_refuse_`, likewise.
  struct confirming_opens {
    std::set<std::uint64_t> ids;
    std::list<gpushm::generation> place;  ///< the segment; empty while it is in `to_refuse_`
  };
  /// Segments by slot: what takes a slot meanwhile is newer.
  struct ending_device {
    lost_device of;
    gpushm::generation end = 0;  ///< those before this one are lost
    std::uint32_t next_slot = 0;
  };
  struct dead_name {
    std::string name;
    base::device_loss loss;  ///< of its GPU; none: its exporter died
  };
  struct participant {
    actor who;  ///< never null
    std::shared_ptr<core::payload> payload;
    std::set<gpushm::generation> leased;
    std::set<gpushm::generation> created;
    std::set<std::uint64_t> building;  ///< versions that it builds, by `version_origin::id`
    std::set<std::uint64_t> waiting;
    std::set<std::uint64_t> confirming;  ///< its opens that wait for an exporter's confirmation
    std::uint32_t subscriptions = 0;
    names unpublished;
    std::set<std::uint64_t> awaiting_reply;    ///< confirmations sent, without a reply
    std::set<std::uint64_t> queued_questions;  ///< queued until some of those have replies
    bool is_operator = false;
    charges held;
    /// Set when it ended without a goodbye and its fence is not reached.
    struct loss {
      time_point since;
      fence_wait waits_for = fence_wait::process;
      bool is_resumed = false;  ///< another session takes what it has
    };
    std::optional<loss> lost;
    session_id resumes = 0;  ///< the ending session from which it takes what that has; 0: none
    /// Set when it has resumed another session and still reports what it keeps, by `lease::kept`.
    /// In ascending order: what it has reported to an earlier version of the broker.
    std::optional<std::vector<gpushm::generation>> kept;
    std::list<ended_session> over;  ///< one empty node, preallocated for `ended_`
  };
  /// Leases that a session resumed and did not keep.
  struct unkept {
    static constexpr std::size_t part_size = 256;  ///< of what is saved in one
    session_id session = 0;
    std::vector<std::pair<gpushm::generation, std::uint32_t>> left;  ///< and replies
  };

  /// The account that pays for what the peer has.
  [[nodiscard]] charges charges_of(const peer& peer);
  [[nodiscard]] charges charges_of_connection(const peer& peer);
  void restore_session(session_id id, const saved_session& session);
  void restore_segment(gpushm::generation generation, const saved_segment& saved);
  void restore_metadata(gpushm::generation generation, saved_metadata metadata);
  void restore_lease(gpushm::generation generation, session_id holder, const saved_lease& lease);
  void restore_subscription(session_id session,
                            std::uint64_t id,
                            const saved_subscription& subscription);
  void restore_waiting(std::uint64_t id, const saved_open& open);
  void restore_confirmation(std::uint64_t id, const saved_confirmation& confirmation);
  void restore_end(session_id session, const saved_end& end);
  void restore_unkept(session_id session, const saved_unkept& unkept);
  void restore_version(std::uint64_t id, const saved_version& saved);
  void restore_alias(std::uint32_t slot, const saved_alias& saved);
  void restore_indexes();
  [[nodiscard]] static saved_value saved_part(const unkept& unkept, std::uint64_t part);
  /// Adds an object to `effects::records`.
  void note(record_kind kind, std::uint64_t first = 0, std::uint64_t second = 0) noexcept;

  participant& find_session(session_id id);
  segment& find(gpushm::generation generation);
  [[nodiscard]] static segment* of_name(const names& names, std::string_view name);
  [[nodiscard]] segment* named(std::string_view name) const;
  [[nodiscard]] segment& visible(session_id session,
                                 std::string_view name,
                                 gpushm::generation generation) const;
  void check_name_is_free(session_id session,
                          const reservation& reservation,
                          bool is_handed_back) const;
  void check_manages(session_id session, std::string_view base) const;
  void check_reservation_of_version(session_id session,
                                    const reservation& wanted,
                                    bool is_handed_back) const;
  [[nodiscard]] segment* published_of(std::string_view name) const noexcept;
  [[nodiscard]] alias_word alias_of(std::string_view name) const noexcept;
  [[nodiscard]] error no_such_version(std::string_view name) const;
  void publish_part(session_id session, segment& part);
  void publish_now(session_id session, segment& reserved);
  void make_room_for_moves();
  [[nodiscard]] bool has_room_for_moves() const noexcept;
  void settle_versions() noexcept;
  void wake_alias(std::string_view alias) noexcept;
  void wake_under_aliases(const segment& published) noexcept;
  void work_on_versions();
  [[nodiscard]] bool may_see(session_id session, const segment& segment) const;
  [[nodiscard]] bool may_manage(session_id session, const segment& segment) const;
  [[nodiscard]] bool is_owner(const peer& peer) const noexcept {
    return peer.uid_known && peer.uid == owner_uid_ && !peer.is_foreign;
  }
  [[nodiscard]] error no_such_segment(std::string_view name) const;
  [[nodiscard]] static error another_generation(const segment& segment);
  [[nodiscard]] static error may_not_manage(std::string_view action, const segment& segment);
  [[nodiscard]] error exporter_died() const;
  [[nodiscard]] error memory_lost(const base::device_loss& loss) const;

  /// True if the effects of ending a lease on `segment` fit into the capacity of `pending()`.
  [[nodiscard]] bool has_room_to_end(const segment& segment) const;
  [[nodiscard]] bool has_room_to_wake() const noexcept;
  /// Capacity reserved for effects of each kind: those of one turn and of one segment.
  static constexpr std::size_t min_capacity = 1'024;
  void make_room(std::size_t changes, std::size_t replies);
  void make_room_to_record(std::size_t objects);
  [[nodiscard]] bool has_room_to_record(std::size_t objects) const noexcept;
  void reply(session_id session, const open_request& request, const segment& segment) noexcept;
  void refuse(session_id session, const open_request& request, std::optional<error> why) noexcept;
  /// Refuses with the error that `make` returns, or without a text if memory is short.
  template <typename Make>
  void refuse_with(session_id session, const open_request& request, Make&& make) noexcept {
    std::optional<error> why;
    try {
      why.emplace(make());
    } catch (const std::bad_alloc&) {  // refused without a text
    }
    refuse(session, request, std::move(why));
  }
  /// Runs `attempt` and replies with the error that it throws.
  template <typename Attempt>
  void or_refuse(session_id session, const open_request& request, Attempt&& attempt) noexcept {
    try {
      attempt();
    } catch (const error& why) {
      refuse(session, request, why);
    } catch (const std::bad_alloc&) {
      refuse(session, request, std::nullopt);
    }
  }
  /// After a change of what the state table shows of it: also records it.
  void show(const segment& segment);

  void take_lease(session_id session, segment& segment);
  void erase_lease(segment& segment, std::vector<lease>::iterator at) noexcept;
  /// `actor`: null: the session's process.
  void end_lease(session_id session,
                 segment& segment,
                 std::uint32_t count,
                 bool never_mapped = false,
                 const actor& actor = nullptr);
  void unname(segment& segment, bool exporter_gone = false);
  void remember_dead(const std::string& name, base::device_loss loss = {});
  void forget_dead(std::string_view name) noexcept;
  void lose_some();
  void lose_device_of(segment& segment, base::device_loss loss);
  void confirm_with_exporter(session_id session,
                             open_request request,
                             const segment& segment,
                             time_point since);
  waiting_confirmation take_confirmation(std::uint64_t id);
  [[nodiscard]] std::size_t leases_per_turn() const noexcept;
  void stop_requests(session_id session, participant& participant);
  bool end_next_lease(ended_session& gone);
  bool release_next(unkept& unkept);
  void end_lease_of_ended_session(session_id session,
                                  const actor& actor,
                                  end_kind end,
                                  segment& segment);
  struct unfence_choice {
    std::set<session_id> holders;
    bool has_more = false;
  };
  [[nodiscard]] unfence_choice choose_to_unfence(session_id session, const segment& target) const;
  [[nodiscard]] const participant::loss* loss_of(session_id session) const;
  [[nodiscard]] bool waits_for_fence(const segment& segment) const;
  [[nodiscard]] error writer_ending(const segment& segment) const;
  void transfer(segment& segment, session_id source, session_id target) noexcept;
  void wake_after_fence(std::string_view name);
  bool wake_some(std::string_view name, segment& published);
  void end_with_exporter(segment& segment, end_kind end, const actor& actor);
  bool refuse_unconfirmed(gpushm::generation generation, end_kind end);
  void refuse_later(gpushm::generation generation) noexcept;
  [[nodiscard]] static bool is_in_use(const segment& segment) noexcept;
  /// No client finds it any longer.
  void withdraw(segment& segment);
  [[nodiscard]] bool has_opens_to_refuse(const segment& segment) const;
  void free_if_unused(segment& unused);
  void grant_or_refuse(session_id session, const open_request& request, segment& segment);
  void wait(session_id session, open_request request);
  waiting_open take_waiting(std::uint64_t id);
  void expire_waiting(std::uint64_t id);
  void expire_confirmation(std::uint64_t id);
  void wake(segment& published);
  [[nodiscard]] actor actor_of(session_id session) const noexcept;
  void emit(event_kind kind, const segment& segment, const actor& actor);
  void emit(event_kind kind,
            const segment& segment,
            std::size_t leases,
            std::int32_t peer_pid,
            const actor& actor);

  std::string name_;
  std::uint32_t owner_uid_;
  limits limits_;
  core::budget budget_;  // declared before every member that has charges
  effects effects_;
  time_point now_{};
  deadline_queue deadlines_;  ///< of waiting_ and confirming_

  std::unordered_map<gpushm::generation, std::shared_ptr<segment>> segments_;
  // Each named segment is in exactly one of these. Only one that replaces a published one has the
  // same name as that.
  names published_;
  names reserved_;
  std::unordered_map<session_id, participant> sessions_;
  std::vector<subscription> subscriptions_;  // in order of their places
  std::uint64_t next_place_ = 1;

  std::map<std::uint64_t, waiting_open> waiting_;
  std::map<std::string, name_waiters, std::less<>> waiting_by_name_;
  std::uint64_t next_waiting_ = 1;

  std::map<std::uint64_t, waiting_confirmation> confirming_;
  std::map<gpushm::generation, confirming_opens> confirming_by_generation_;
  std::uint64_t next_confirmation_ = 1;

  std::map<std::string, std::uint64_t, std::less<>> dead_names_;  // see remember_dead
  std::map<std::uint64_t, dead_name> dead_names_in_order_;
  std::uint64_t next_dead_name_ = 1;
  session_id next_session_ = 1;  ///< larger than that of every session so far
  std::uint64_t next_change_ = 1;

  gpushm::generation next_generation_;
  core::generation_times generation_times_;
  slot_table slots_;
  version_table versions_;
  struct version_record {
    charges held;
    session_id builder = 0;  ///< has it in `building`; 0: none
  };
  std::unordered_map<std::uint64_t, version_record> version_records_;  ///< by `version_origin::id`
  std::unordered_map<std::uint32_t, charges> alias_charges_;           ///< by slot
  std::size_t lease_count_ = 0;
  std::size_t ending_sessions_ = 0;  ///< of sessions_
  std::list<ended_session> ended_;
  std::deque<unkept> unkept_;
  std::list<std::string> due_;               // published names whose opens have no reply yet
  std::list<gpushm::generation> to_refuse_;  // their exporters' leases were ended by `unfence`
  std::list<ending_device> lost_devices_;
};

}  // namespace gpushm::core
