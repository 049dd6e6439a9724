// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/domain.hpp"
#include "core/segment.hpp"

namespace gpushm::core {

// What a domain consists of, as values: `domain::save` returns them, and a domain that is made from
// them continues where the first one was (docs/adr/0031). Times are of the machine's monotonic
// clock, so another process can use them.
//
// Not included: payloads, which the caller sets again; charges and indexes, which follow from the
// rest; and the charges of ended sessions, whose leases end soon.

struct saved_session {
  session_id id = 0;
  peer who;
  /// It ended without a goodbye, and its fence is not reached.
  struct loss {
    time_point since;
    fence_wait waits_for = fence_wait::process;
    friend bool operator==(const loss&, const loss&) = default;
  };
  std::optional<loss> lost;
  /// It has resumed another session, and has reported that it keeps these.
  std::optional<std::vector<gpushm::generation>> kept;
  std::vector<std::uint64_t> unanswered;  ///< confirmations, in the order in which they were sent
  std::vector<std::uint64_t> queued_questions;  ///< confirmations that are not sent yet
  friend bool operator==(const saved_session&, const saved_session&) = default;
};

struct saved_segment : reservation {
  gpushm::generation generation = 0;
  std::uint32_t slot = 0;
  std::uint32_t attached_chunks = 0;
  bool published = false;
  bool removed = false;
  bool used = false;
  peer creator;
  session_id creator_session = 0;
  std::vector<lease> leases;
  std::vector<std::byte> metadata;
  friend bool operator==(const saved_segment&, const saved_segment&) = default;
};

struct saved_subscription {
  session_id session = 0;
  std::uint64_t id = 0;
  std::string prefix;
  friend bool operator==(const saved_subscription&, const saved_subscription&) = default;
};

/// An open that waits for its name.
struct saved_open {
  std::uint64_t id = 0;
  session_id session = 0;
  open_request request;
  friend bool operator==(const saved_open&, const saved_open&) = default;
};

/// An open that waits for the exporter's confirmation.
struct saved_confirmation {
  std::uint64_t id = 0;
  session_id session = 0;
  open_request request;
  gpushm::generation generation = 0;
  time_point deadline;
  session_id exporter = 0;
  friend bool operator==(const saved_confirmation&, const saved_confirmation&) = default;
};

/// A session that has ended; its leases that have not.
struct saved_end {
  session_id session = 0;
  std::int32_t pid = 0;
  std::uint8_t how = 0;  ///< 0 goodbye, 1 death, 2 unfenced: never renumber
  std::vector<gpushm::generation> left;
  friend bool operator==(const saved_end&, const saved_end&) = default;
};

/// Leases that a session has resumed and not kept, and their answers.
struct saved_unkept {
  session_id session = 0;
  std::vector<std::pair<gpushm::generation, std::uint32_t>> left;
  friend bool operator==(const saved_unkept&, const saved_unkept&) = default;
};

struct saved_state {
  gpushm::generation next_generation = 1;
  std::uint64_t next_waiting = 1;
  std::uint64_t next_confirmation = 1;
  std::vector<saved_session> sessions;            ///< by id
  std::vector<saved_segment> segments;            ///< by generation
  std::vector<saved_subscription> subscriptions;  ///< in the order of their events
  std::vector<saved_open> waiting;                ///< by id
  std::vector<saved_confirmation> confirming;     ///< by id
  std::vector<saved_end> ended;                   ///< in the order in which they are handled
  std::vector<saved_unkept> unkept;               ///< the same
  std::vector<std::string> due;         ///< names whose opens can be answered, in that order
  std::vector<std::string> dead_names;  ///< the oldest first
  friend bool operator==(const saved_state&, const saved_state&) = default;
};

}  // namespace gpushm::core
