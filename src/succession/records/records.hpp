// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/domain.hpp"
#include "core/saved_state.hpp"
#include "gpushm/types.hpp"
#include "protocol/wire/messages.hpp"
#include "succession/journal/journal.hpp"

/// What a broker writes to its journal (docs/adr/0031): the objects of its domain, and those of its
/// sockets. Each is a FlatBuffers table (records.fbs), so that another version can read it: fields
/// are appended, never renumbered or removed. An unknown field is ignored; a missing one has the
/// default that is given here.
namespace gpushm::records {

/// Kinds of the broker's own records, after those of core::record_kind. Stored: never renumber.
enum class kind : std::uint32_t {
  broker = 64,
  connection = 65,
  files = 66,
  open_rest = 67,
  lane = 68,
  packet = 69,
  handled = 70,      ///< key: session and lane; no value
  open_next = 71,    ///< key: session and `open_rest_record::next` as it is now; no value
  freeing = 72,      ///< the last record of a segment that has ended, until its `files` are closed
  events_left = 73,  ///< not all subscribers have all events: each gets a resync; no value
};

/// What this version reads. Raised when a broker records something that an earlier version must not
/// skip, such as an object that has a slot: it then records the same number as `min_reader`, before
/// the first such object.
inline constexpr std::uint32_t reader = 2;
/// The lowest `reader` that may continue a domain with records of a kind.
[[nodiscard]] constexpr std::uint32_t min_reader_of(core::record_kind kind) noexcept {
  return kind == core::record_kind::version || kind == core::record_kind::alias ? 2 : 1;
}

/// Maximum size of a record's strings and lists. FlatBuffers could not represent twice as much.
inline constexpr std::size_t max_record_bytes = std::size_t{1} << 30U;

/// Names a descriptor that the keeper has; unique in a domain. 0: none.
using descriptor_id = std::uint64_t;

// The subjects of reported calls (protocol/transport/reported_call.hpp). Stored: never change.

/// A packet with a record has its number. An event has no record, but is the first one after
/// `sent` packets of its lane.
inline constexpr std::uint64_t event_mark = std::uint64_t{1} << 63U;
inline constexpr unsigned session_bits = 40;
[[nodiscard]] constexpr std::uint64_t event_of(core::session_id session,
                                               std::uint64_t sent) noexcept {
  return event_mark | (sent << session_bits & ~event_mark) | session;
}
[[nodiscard]] constexpr core::session_id session_of_event(std::uint64_t subject) noexcept {
  return subject & ((std::uint64_t{1} << session_bits) - 1);
}
/// The first packet received on a lane.
[[nodiscard]] constexpr std::uint64_t first_packet_of(core::session_id session,
                                                      bool on_event_lane) noexcept {
  return session << 1U | (on_event_lane ? 1U : 0U);
}

/// The domain. Key: 0, 0.
struct broker_record {
  std::string domain;
  gpushm::epoch epoch{};
  std::uint32_t slots = 0;  ///< of the state table
  std::string socket_path;
  descriptor_id table = 0;  ///< of brokers of an earlier version: their successors also wrote it
  descriptor_id listener = 0;
  descriptor_id lock = 0;
  std::uint64_t socket_device = 0;  ///< the file at `socket_path`, as stat(2) says
  std::uint64_t socket_inode = 0;
  std::uint32_t min_reader = 1;  ///< a version with a lower `reader` must not continue the domain
  friend bool operator==(const broker_record&, const broker_record&) = default;
};

/// A session's connection. Key: the session.
struct connection_record {
  bool greeted = false;
  bool sent_bye = false;
  bool dropped = false;
  bool closed = false;  ///< its sockets are closed; its leases wait for the fence
  wire::session_token token{};
  gpushm::fence fence = gpushm::fence::none;
  descriptor_id requests = 0;
  descriptor_id events = 0;
  descriptor_id process = 0;  ///< a pidfd
  descriptor_id life = 0;
  std::uint32_t known_kinds = 0;
  bool takes_tables = false;
  /// Upper bounds of descriptors that are sent on each lane and may be unread; 0: not known.
  std::uint32_t inflight_requests = 0;
  std::uint32_t inflight_events = 0;
  bool knows_versions = false;
  friend bool operator==(const connection_record&, const connection_record&) = default;
};

/// A segment's chunks, also of one that has ended: see `kind::freeing`. Key: its generation, and 0.
/// Each further `part_size` have a record of their own, with 1, 2, … in the key: an Attach does not
/// record again what came with earlier ones.
struct files_record {
  static constexpr std::size_t part_size = 4'096;
  std::vector<descriptor_id> chunks;
  std::vector<std::uint64_t> chunk_bytes;  ///< as many
  descriptor_id writable = 0;              ///< of a timeline page
  friend bool operator==(const files_record&, const files_record&) = default;
};

/// The names of an open_many that are not all opened yet, recorded once. Key: the session.
struct open_rest_record {
  std::uint64_t id = 0;
  std::vector<std::string> names;  ///< all of the request
  std::uint64_t expected_size_bytes = 0;
  std::uint32_t next = 0;  ///< index of the next one, unless there is an `open_next`
  std::optional<core::time_point> deadline;
  core::time_point asked{};
  friend bool operator==(const open_rest_record&, const open_rest_record&) = default;
};

/// Packets of an event lane. Key: the session. Those that are queued and have no packet_record are
/// events: they are replaced by a resync.
struct lane_record {
  std::uint64_t queued = 0;  ///< so far, sent or not
  std::uint64_t sent = 0;
  friend bool operator==(const lane_record&, const lane_record&) = default;
};

/// A packet that is to be sent. Key: its number, in the order of queueing.
struct packet_record {
  core::session_id session = 0;
  bool on_event_lane = false;
  bool is_reply = true;
  std::uint64_t place = 0;  ///< on the event lane: the number of packets queued before it
  std::vector<std::byte> bytes;
  /// The segment whose metadata is to be added to `bytes`, an `opened`; 0: none.
  gpushm::generation metadata_of = 0;
  /// Its descriptors, in order: chunks of the segment `files_of`; or the state table (0: that of
  /// the broker that sends it), and in a `welcome` the client's end of the event lane.
  std::vector<descriptor_id> descriptors;
  gpushm::generation files_of = 0;
  friend bool operator==(const packet_record&, const packet_record&) = default;
};

using broker_value = std::variant<broker_record,
                                  connection_record,
                                  files_record,
                                  open_rest_record,
                                  lane_record,
                                  packet_record>;

[[nodiscard]] journal::record_key key_of(const core::record_name& name) noexcept;
[[nodiscard]] constexpr journal::record_key key_of(kind kind,
                                                   std::uint64_t first = 0,
                                                   std::uint64_t second = 0) noexcept {
  return {static_cast<std::uint32_t>(kind), first, second};
}
/// Returns nullopt if it is not a kind of the domain's objects.
[[nodiscard]] std::optional<core::record_name> name_of(const journal::record_key& key) noexcept;

/// Encodes records. Keeps its buffer, so that most calls allocate nothing.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class encoder {
 public:
  encoder();
  encoder(const encoder&) = delete;
  encoder& operator=(const encoder&) = delete;
  ~encoder();

  /// The bytes are valid until the next call. Preconditions: not monostate; `decode` accepts the
  /// value. Throws `error`: message_too_large (max_record_bytes); and std::bad_alloc.
  [[nodiscard]] std::span<const std::byte> encode(const core::saved_value& value);
  [[nodiscard]] std::span<const std::byte> encode(const broker_value& value);

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

/// The value of a record. Throws `error`: invalid_argument if the bytes are not a record of that
/// kind, or contain a value that does not exist (an enumerator, a length); and std::bad_alloc.
/// Precondition: the bytes are aligned to 8, as a journal's are.
[[nodiscard]] core::saved_value decode(core::record_kind kind, std::span<const std::byte> bytes);
/// Precondition: `kind` is not `handled`, `open_next` or `events_left`, which have no value, or
/// `freeing`, which has that of a segment.
[[nodiscard]] broker_value decode(kind kind, std::span<const std::byte> bytes);

}  // namespace gpushm::records
