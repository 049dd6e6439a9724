// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/segments/device_loss.hpp"
#include "base/segments/segment_facts.hpp"
#include "gpushm/client.hpp"
#include "gpushm/error.hpp"
#include "gpushm/types.hpp"

namespace gpushm::wire {

/// The highest version that this code supports; it is the only one so far.
inline constexpr std::uint32_t protocol_version = 2;
/// Maximum number of descriptors in one packet: SCM_MAX_FD of Linux.
inline constexpr std::size_t max_batch = 253;
/// Maximum size of a packet that either side sends or accepts. A default socket buffer
/// (net.core.wmem_default, 212,992 bytes) has room for one.
inline constexpr std::size_t max_packet_bytes = 192UL * 1024;
/// Maximum number of names in one open_many.
inline constexpr std::size_t max_open_many = 1000;
/// Maximum number of parts of a version.
inline constexpr std::size_t max_parts = 1'024;
/// Maximum number of generations in one keep.
inline constexpr std::size_t max_keep = 4096;

/// The kinds of segments that this code knows: those of `backend`. Clients of the first release
/// know four, and must not see others; brokers that do not say so take six.
inline constexpr std::uint32_t known_kinds = static_cast<std::uint32_t>(backend::descriptor) + 1;
inline constexpr std::uint32_t first_known_kinds = 4;
inline constexpr std::uint32_t first_taken_kinds = 6;

/// Bearer token of a connection; all zero: none.
using session_token = std::array<std::uint8_t, 24>;

// One struct per table of protocol.fbs, with the same fields; protocol.fbs documents them.

struct hello {
  std::uint32_t version = protocol_version;
  std::string boot_id;
  std::uint64_t pid_namespace = 0;
  std::int32_t pid = 0;
  gpushm::fence fence = gpushm::fence::none;
  session_token resume{};
  std::uint32_t known_kinds = 0;
  bool takes_tables = false;
  bool knows_versions = false;
  friend bool operator==(const hello&, const hello&) = default;
};

struct welcome {
  std::uint32_t version = protocol_version;
  std::string domain;
  gpushm::epoch epoch{};
  std::uint64_t max_segments = 0;
  std::uint64_t quota_bytes = 0;
  std::uint32_t max_batch = 0;
  bool takes_reports = false;
  gpushm::fence fence = gpushm::fence::none;
  std::uint32_t fence_delay_ms = 0;
  session_token token{};
  bool resumed = false;
  std::uint32_t known_kinds = 0;
  bool knows_versions = false;
  friend bool operator==(const welcome&, const welcome&) = default;
};

/// HMAC-SHA256: by it, a broker recognizes a member that had the segment from an earlier broker.
using receipt = std::array<std::byte, 32>;

struct reserve : base::reservation {
  gpushm::generation generation = 0;  ///< 0: a new segment
  std::uint32_t creator_uid = 0;
  std::optional<wire::receipt> receipt = {};
  friend bool operator==(const reserve&, const reserve&) = default;
};

struct reserved {
  gpushm::generation generation = 0;
  std::uint32_t slot = 0;
  std::optional<wire::receipt> receipt = {};
  friend bool operator==(const reserved&, const reserved&) = default;
};

struct attach {
  gpushm::generation generation = 0;
  std::uint32_t first_chunk = 0;
  std::vector<std::uint64_t> chunk_bytes;
  friend bool operator==(const attach&, const attach&) = default;
};

struct publish {
  gpushm::generation generation = 0;
  std::vector<std::byte> metadata;
  friend bool operator==(const publish&, const publish&) = default;
};

struct open {
  std::string name;
  std::uint64_t expected_size_bytes = 0;
  std::uint32_t timeout_ms = 0;
  gpushm::generation generation = 0;  ///< 0: the segment that has the name
  friend bool operator==(const open&, const open&) = default;
};

struct open_many {
  std::vector<std::string> names;
  std::uint64_t expected_size_bytes = 0;
  std::uint32_t timeout_ms = 0;
  friend bool operator==(const open_many&, const open_many&) = default;
};

struct segment : base::segment_facts {
  gpushm::generation generation = 0;
  std::uint32_t slot = 0;
  bool published = false;
  segment_state state = segment_state::live;  ///< as the state table shows it
  std::uint32_t leases = 0;
  std::uint32_t creator_uid = 0;
  std::int32_t creator_pid = 0;
  bool creator_alive = false;
  std::uint64_t metadata_bytes = 0;
  std::uint32_t ending = 0;
  std::int32_t ending_pid = 0;
  std::uint64_t ending_ms = 0;
  fence_wait ending_waits = fence_wait::process;
  friend bool operator==(const segment&, const segment&) = default;
};

struct opened {
  std::uint32_t index = 0;
  wire::segment segment;
  std::vector<std::byte> metadata;
  std::vector<std::uint64_t> chunk_bytes;
  std::vector<std::byte> ticket = {};
  std::optional<wire::receipt> receipt = {};
  std::uint32_t alias_slot = 0;
  gpushm::generation alias_generation = 0;  ///< 0: it was not opened by an alias
  friend bool operator==(const opened&, const opened&) = default;
};

struct fetch_chunks {
  gpushm::generation generation = 0;
  std::uint32_t first_chunk = 0;
  friend bool operator==(const fetch_chunks&, const fetch_chunks&) = default;
};

struct chunks {
  gpushm::generation generation = 0;
  std::uint32_t first_chunk = 0;
  std::vector<std::uint64_t> chunk_bytes;
  friend bool operator==(const chunks&, const chunks&) = default;
};

struct release {
  gpushm::generation generation = 0;
  std::uint32_t count = 0;
  bool never_mapped = false;
  friend bool operator==(const release&, const release&) = default;
};

struct remove {
  std::string name;
  gpushm::generation generation = 0;  ///< 0: the segment that has the name
  friend bool operator==(const remove&, const remove&) = default;
};

struct list {
  std::string prefix;
  std::string after;
  friend bool operator==(const list&, const list&) = default;
};

struct listing {
  std::vector<wire::segment> segments;
  bool more = false;
  friend bool operator==(const listing&, const listing&) = default;
};

struct stat {
  std::string name;
  gpushm::generation generation = 0;  ///< 0: the segment that has the name
  friend bool operator==(const stat&, const stat&) = default;
};

struct subscribe {
  std::string prefix;
  friend bool operator==(const subscribe&, const subscribe&) = default;
};

struct unsubscribe {
  std::uint64_t subscription = 0;
  friend bool operator==(const unsubscribe&, const unsubscribe&) = default;
};

struct event {
  event_kind kind = event_kind::resync;
  std::string name;
  gpushm::generation generation = 0;
  std::uint32_t leases = 0;
  std::int32_t peer_pid = 0;
  base::device_loss loss = {};
  friend bool operator==(const event&, const event&) = default;
};

struct failure {
  std::uint32_t index = 0;
  errc code = errc::protocol_error;
  std::string cause;
  std::string next_step;
  std::int32_t pid = 0;  ///< `error::pid`
  friend bool operator==(const failure&, const failure&) = default;
};

struct done {
  friend bool operator==(const done&, const done&) = default;
};

struct bye {
  friend bool operator==(const bye&, const bye&) = default;
};

/// The exporter's reply about exporter-bound memory. Values travel on the wire: never
/// renumber.
enum class verdict : std::uint8_t { unchanged = 0, changed = 1, not_shared = 2 };

/// 1 to `max_batch` questions, and the same number of generations.
struct confirm {
  std::vector<std::uint64_t> questions;
  std::vector<std::uint64_t> generations;
  friend bool operator==(const confirm&, const confirm&) = default;
};

/// 1 to `max_batch` questions, and the same number of verdicts.
struct confirmed {
  std::vector<std::uint64_t> questions;
  std::vector<wire::verdict> verdicts;
  friend bool operator==(const confirmed&, const confirmed&) = default;
};

/// The results of a client's opens since its last report, as the client measured them: at most
/// `max_batch` entries in each list. And the items that its producers of channels have published.
struct report {
  std::vector<std::uint64_t> open_ns;
  std::vector<std::uint64_t> failures;  ///< errc
  std::uint64_t cached = 0;
  std::uint64_t items = 0;
  std::uint64_t item_bytes = 0;               ///< of the slots of those
  std::vector<std::uint64_t> import_ns = {};  ///< of each success, the part after the reply
  friend bool operator==(const report&, const report&) = default;
};

struct unfence {
  std::string name;
  friend bool operator==(const unfence&, const unfence&) = default;
};

/// At most `max_keep` generations, and the same number of counts.
struct keep {
  std::vector<std::uint64_t> generations;
  std::vector<std::uint64_t> counts;
  bool more = false;
  friend bool operator==(const keep&, const keep&) = default;
};

struct waiting {
  std::uint32_t index = 0;
  std::optional<wire::segment> segment = {};  ///< nothing: it waits for the name
  std::vector<std::uint64_t> chunk_bytes = {};
  std::vector<std::byte> ticket = {};
  friend bool operator==(const waiting&, const waiting&) = default;
};

struct cancel {
  std::uint64_t request = 0;
  friend bool operator==(const cancel&, const cancel&) = default;
};

struct cancelled {
  friend bool operator==(const cancelled&, const cancelled&) = default;
};

struct too_late {
  std::uint64_t after = 0;
  friend bool operator==(const too_late&, const too_late&) = default;
};

struct subscribed {
  std::vector<wire::segment> segments;
  bool more = false;
  std::uint64_t after = 0;
  friend bool operator==(const subscribed&, const subscribed&) = default;
};

struct continued {
  friend bool operator==(const continued&, const continued&) = default;
};

struct create_version {
  std::string base;
  std::uint64_t number = 0;  ///< 0: the next one
  std::vector<std::string> parts;
  std::uint32_t keep_versions = 0;
  std::uint64_t keep_bytes = 0;
  friend bool operator==(const create_version&, const create_version&) = default;
};

struct version_created {
  std::uint64_t number = 0;
  friend bool operator==(const version_created&, const version_created&) = default;
};

/// Values travel on the wire: never renumber.
enum class version_change : std::uint8_t { withdraw = 0, move_alias = 1, remove_alias = 2 };

struct change_version {
  std::string base;
  std::uint64_t number = 0;
  version_change change = version_change::withdraw;
  std::string alias = {};
  friend bool operator==(const change_version&, const change_version&) = default;
};

struct resolve {
  std::string name;
  friend bool operator==(const resolve&, const resolve&) = default;
};

struct resolved {
  std::uint64_t number = 0;
  std::uint32_t alias_slot = 0;
  gpushm::generation alias_generation = 0;  ///< 0: the name has a number
  friend bool operator==(const resolved&, const resolved&) = default;
};

/// A version in a list.
struct version_info {
  std::uint64_t number = 0;
  version_state state = version_state::building;
  bool withdrawn = false;
  std::uint64_t bytes = 0;
  std::uint32_t held = 0;
  std::vector<std::string> aliases;
  friend bool operator==(const version_info&, const version_info&) = default;
};

struct list_versions {
  std::string base;
  friend bool operator==(const list_versions&, const list_versions&) = default;
};

struct versions {
  std::vector<version_info> versions;
  friend bool operator==(const wire::versions&, const wire::versions&) = default;
};

using body = std::variant<hello,
                          welcome,
                          reserve,
                          reserved,
                          attach,
                          publish,
                          open,
                          open_many,
                          opened,
                          fetch_chunks,
                          chunks,
                          release,
                          remove,
                          list,
                          listing,
                          stat,
                          subscribe,
                          unsubscribe,
                          event,
                          failure,
                          done,
                          bye,
                          confirm,
                          confirmed,
                          report,
                          unfence,
                          keep,
                          waiting,
                          cancel,
                          cancelled,
                          too_late,
                          subscribed,
                          continued,
                          create_version,
                          version_created,
                          change_version,
                          resolve,
                          resolved,
                          list_versions,
                          versions>;

/// Whether a client sends it on the event lane; everything else is sent on the request lane.
[[nodiscard]] inline bool is_sent_on_event_lane(const body& body) noexcept {
  return std::holds_alternative<confirmed>(body) || std::holds_alternative<report>(body);
}

struct message {
  std::uint64_t id = 0;
  wire::body body;
  friend bool operator==(const message&, const message&) = default;
};

}  // namespace gpushm::wire
