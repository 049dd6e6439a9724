// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/domain.hpp"
#include "core/effects.hpp"
#include "core/segment.hpp"
#include "core/versions.hpp"

namespace gpushm::core {

// What a domain consists of, as one value for each object (docs/adr/0031). A domain that is made
// from them continues where the first one was. Times are of the machine's monotonic clock, so that
// another process can use them.
//
// Not included: payloads, which the caller sets again; charges and indexes, which follow from the
// rest; the charges of ended sessions, whose leases end soon; and the places of unanswered
// questions that have timed out.

struct saved_numbers {
  gpushm::generation next_generation = 1;
  std::uint64_t next_waiting = 1;
  std::uint64_t next_confirmation = 1;
  std::uint64_t next_dead_name = 1;
  /// Larger than the number of every session so far: what names one that has ended must not mean
  /// another one.
  session_id next_session = 1;
  std::uint64_t next_change = 1;  ///< for subscribers
  friend bool operator==(const saved_numbers&, const saved_numbers&) = default;
};

/// Key: its number.
struct saved_session {
  peer who;
  /// It ended without a goodbye, and its fence is not reached.
  struct loss {
    time_point since;
    fence_wait waits_for = fence_wait::process;
    friend bool operator==(const loss&, const loss&) = default;
  };
  std::optional<loss> lost;
  /// It has resumed another session, and still reports what it keeps. Of an earlier version: it has
  /// also reported these (`saved_lease::kept`).
  std::optional<std::vector<gpushm::generation>> kept;
  session_id resumes = 0;  ///< the ending session from which it has not taken everything; 0: none
  friend bool operator==(const saved_session&, const saved_session&) = default;
};

/// Key: its generation.
struct saved_segment : reservation {
  std::uint32_t slot = 0;
  std::uint32_t attached_chunks = 0;
  bool published = false;
  bool removed = false;
  bool used = false;
  peer creator;
  session_id creator_session = 0;
  bool exporter_gone = false;
  base::device_loss loss;
  bool complete = false;
  friend bool operator==(const saved_segment&, const saved_segment&) = default;
};

/// Key: the segment's generation.
struct saved_metadata {
  std::vector<std::byte> bytes;
  friend bool operator==(const saved_metadata&, const saved_metadata&) = default;
};

/// Key: the segment's generation and the session.
struct saved_lease {
  std::uint32_t count = 0;
  bool used = false;
  bool kept = false;
  friend bool operator==(const saved_lease&, const saved_lease&) = default;
};

/// Key: the session and the subscription's number.
struct saved_subscription {
  std::string prefix;
  friend bool operator==(const saved_subscription&, const saved_subscription&) = default;
};

/// An open that waits for its name. Key: its number.
struct saved_open {
  session_id session = 0;
  open_request request;
  friend bool operator==(const saved_open&, const saved_open&) = default;
};

/// An open that waits for the exporter's confirmation. Key: its number.
struct saved_confirmation {
  session_id session = 0;
  open_request request;
  gpushm::generation generation = 0;
  time_point deadline;
  session_id exporter = 0;
  bool sent = false;  ///< the question to the exporter
  friend bool operator==(const saved_confirmation&, const saved_confirmation&) = default;
};

/// A session that has ended while its leases have not: those that exist and what it has created are
/// left. Key: its number.
struct saved_end {
  peer who;
  std::uint8_t how = 0;  ///< 0 goodbye, 1 death, 2 unfenced: never renumber
  friend bool operator==(const saved_end&, const saved_end&) = default;
};

/// Leases that a session has resumed and not kept, and their replies, in parts: each turn changes
/// only the last one. Key: the session, and the number of the part.
struct saved_unkept {
  std::vector<std::pair<gpushm::generation, std::uint32_t>> left;
  friend bool operator==(const saved_unkept&, const saved_unkept&) = default;
};

/// The name of a segment whose exporter died, or whose GPU was lost. Key: its place in the order of
/// these ends.
struct saved_dead_name {
  std::string name;
  base::device_loss loss;
  friend bool operator==(const saved_dead_name&, const saved_dead_name&) = default;
};

/// A whole domain. The kinds are ordered so that each object comes after those that it refers to.
struct saved_state {
  std::map<record_name, saved_value> records;
  friend bool operator==(const saved_state&, const saved_state&) = default;
};

}  // namespace gpushm::core
