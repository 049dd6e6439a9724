// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "broker/hub/segment_files.hpp"
#include "core/domain.hpp"
#include "gpushm/broker.hpp"
#include "protocol/wire/messages.hpp"
#include "succession/recorder/kept_fd.hpp"

namespace gpushm::broker_detail {

/// A packet to send. Replies with metadata and events are encoded when they are sent: many may be
/// queued.
struct outgoing {
  std::vector<std::byte> packet;  ///< empty: encode `late`
  wire::message late;
  std::shared_ptr<const core::metadata_block> metadata;  ///< of a late `opened`
  std::vector<int> descriptors;                          ///< not owned
  std::vector<records::descriptor_id> ids;               ///< of `descriptors`; 0: the state table
  std::shared_ptr<const segment_files> files;            ///< keeps `descriptors` open
  std::optional<std::uint64_t> subscription;  ///< of an event, which a resync may replace
  bool is_reply = true;                       ///< false: not the reply of a request
  bool on_event_lane = false;
  std::shared_ptr<const succession::kept_fd> own;  ///< the one of `descriptors` that this owns
  std::uint64_t number = 0;                        ///< its record's; 0: not recorded

  /// It is a `continued`.
  [[nodiscard]] bool is_table() const noexcept { return !is_reply && !ids.empty(); }
  [[nodiscard]] std::vector<std::byte> encode() const;
  /// Bytes charged while it is queued.
  [[nodiscard]] std::uint64_t cost() const noexcept;
};

/// One packet in a list node that can be spliced into a queue: sending it allocates no memory.
using prepared = std::list<outgoing>;

/// The socket that a packet was received on.
enum class lane_kind : unsigned char { requests, events };

/// The remaining names of an `open_many`. Move-only.
struct open_rest {
  std::uint64_t id = 0;
  wire::open_many request;
  std::uint32_t next = 0;
  std::optional<core::time_point> deadline;
  core::time_point asked;
  core::charges held = {};  ///< if there are more names than one turn opens

  [[nodiscard]] std::uint64_t memory_bytes() const noexcept {
    constexpr std::uint64_t each_name = 64;
    std::uint64_t result = 0;
    for (const std::string& name : request.names) {
      result += each_name + name.size();
    }
    return result;
  }
};

/// The hub's state of a session. The server's `connection` derives from it. The domain's map of
/// sessions keeps it until the session is erased, also while it waits for its fence.
struct session : core::payload {
  explicit session(core::session_id id) : number(id) {}

  const core::session_id number;
  bool greeted = false;
  bool sent_bye = false;
  /// No more packets are received from it or queued for it; queued packets are still sent.
  bool dropped = false;
  bool has_event_lane = false;
  std::uint32_t known_kinds = wire::first_known_kinds;
  bool takes_tables = false;
  bool knows_versions = false;
  wire::session_token token{};
  std::optional<open_rest> rest;
  bool resumes = false;  ///< it has not taken everything of a lost session: nothing else is handled
  /// `effect_sink::put_off` after its last request, while not all subscribers have got the events
  /// about that; nothing else is handled, so that no member makes events faster than they are
  /// queued.
  std::uint64_t waits_for_events = 0;
  struct reserve_wait {
    core::time_point since;
    std::uint64_t mark = 0;  ///< of `closer`: what was being freed then
  };
  /// Its Reserve waits for memory that is being freed.
  std::optional<reserve_wait> waits_to_reserve;
  /// The id of its Cancel or Unfence that takes several turns.
  std::optional<std::uint64_t> goes_on;
};

/// Returns null if there is no such session, or it was erased.
[[nodiscard]] inline session* session_of(const core::domain& domain,
                                         core::session_id number) noexcept {
  return static_cast<session*>(domain.payload_of(number));
}

/// The interface through which the hub sends packets.
class outbox {
 public:
  outbox() = default;
  outbox(const outbox&) = delete;
  outbox& operator=(const outbox&) = delete;
  virtual ~outbox() = default;
  /// Queues a packet, which `deliver` sends. Precondition: at most one.
  virtual void send(session& target, prepared packet) noexcept = 0;
  /// Sends queued packets that are replies; everything is recorded.
  virtual void deliver() noexcept = 0;
  /// Records the session's state, in the next commit.
  virtual void record(const session& session) noexcept = 0;
  /// Records the session, and everything that is queued for it.
  virtual void record_all(session& session) noexcept = 0;
  /// Records how many events are queued for each session, in the next commit. Called once for all
  /// that the hub has sent.
  virtual void record_events() noexcept {}
  /// Something could not be recorded: calls `hub::catch_up` later.
  virtual void retry_recording() noexcept = 0;
  /// Returns false if `send` would replace an event for this subscription by a resync, as
  /// `lose_event` does without the event. Members that read nothing must not cost others the time
  /// to make events.
  [[nodiscard]] virtual bool takes_event(const session& /*session*/,
                                         std::uint64_t /*subscription*/) const noexcept {
    return true;
  }
  /// An event was lost for lack of memory: the subscriber must read its segments again (resync).
  virtual void lose_event(session& session, std::uint64_t subscription) noexcept = 0;
  /// Closes the connection after queued packets are sent, then calls `hub::lose`. `why` is for the
  /// log.
  virtual void drop(session& session, std::string_view why) noexcept = 0;
  /// Creates the session's second socket and returns the client's end. Throws.
  [[nodiscard]] virtual succession::kept_fd open_event_lane(session& session) = 0;
  /// Number of packets queued on the event lane so far.
  [[nodiscard]] virtual std::uint64_t events_queued(const session& session) const noexcept = 0;
  /// Sets the session's fence. `pidfd` and `life` are empty if and only if `kind` is none.
  virtual void fence_of(session& session,
                        fence kind,
                        succession::kept_fd pidfd,
                        succession::kept_fd life) = 0;
};

/// Encodes the body, unless `packet` has metadata or is an event: those are encoded when they are
/// sent. Throws std::bad_alloc.
[[nodiscard]] prepared prepare(std::uint64_t id, wire::body body, outgoing packet = {});
/// Adds up to `wire::max_batch` chunks of `packet.files`, starting at `first`, to a packet. Returns
/// their sizes.
[[nodiscard]] std::vector<std::uint64_t> carry_chunks(outgoing& packet, std::size_t first);
/// What members see of a segment, without the leases that wait for a fence.
[[nodiscard]] wire::segment fields_of(const core::segment& segment);
/// Clients of earlier versions cannot decode descriptions of later kinds, and refuse the names of
/// segments that belong to versions.
[[nodiscard]] inline bool is_known_to(const session& member,
                                      const core::segment& segment) noexcept {
  return static_cast<std::uint32_t>(segment.backend) < member.known_kinds &&
         (member.knows_versions || !segment.is_versioned);
}
[[nodiscard]] inline bool is_known_to(const session& member, const core::change& change) noexcept {
  return member.knows_versions || (change.of && !change.of->is_versioned);
}
[[nodiscard]] error unknown_kind();

}  // namespace gpushm::broker_detail
