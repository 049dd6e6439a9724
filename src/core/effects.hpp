// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/segment.hpp"
#include "gpushm/client.hpp"
#include "gpushm/error.hpp"
#include "gpushm/types.hpp"

namespace gpushm::core {

/// The word of a slot of the state table: live, removed or exporter gone for a generation; nothing:
/// free again.
struct slot_word {
  std::uint32_t slot = 0;
  gpushm::generation generation = 0;
  std::optional<segment_state> state;
};

/// An open that will be answered later, unless it is cancelled.
struct open_waits {
  session_id session = 0;
  std::uint64_t request = 0;
  std::uint32_t index = 0;
  /// What it will be answered with if the exporter says that it is unchanged; null: it waits for
  /// the name.
  std::shared_ptr<const segment> offered = nullptr;
};

/// The one answer of an open.
struct open_answer {
  session_id session = 0;
  std::uint64_t request = 0;
  std::uint32_t index = 0;
  std::shared_ptr<const segment> found;  ///< null: refused
  std::optional<error> why;              ///< of a refusal; nothing: there was no memory for a text
  bool late = false;                     ///< it was in `effects::waits` before
};

/// The exporter is to say whether the segment's memory is still the one that it shared; its answer
/// goes to `domain::confirmed`.
struct question {
  session_id exporter = 0;
  std::uint64_t confirmation = 0;
  gpushm::generation generation = 0;
};

/// What happened to a segment. `of` may be gone from the domain by now: its name and generation
/// still hold.
struct change {
  event_kind kind = event_kind::resync;
  std::shared_ptr<const segment> of;
  std::uint32_t leases = 0;
  std::int32_t peer_pid = 0;
  session_id holder = 0;  ///< whose cache is to let go of it; 0: for subscribers of the name
};

/// What the surroundings of a domain have to do for what it was asked, in this order: the state
/// table first, because it is the truth and who has an answer may look there; answers before what
/// others hear of them; each kind in the order in which it came up.
struct effects {
  std::vector<slot_word> slots;
  std::vector<open_waits> waits;
  std::vector<open_answer> answers;
  std::vector<question> questions;
  std::vector<change> changes;

  /// Keeps the room.
  void clear() noexcept {
    slots.clear();
    waits.clear();
    answers.clear();
    questions.clear();
    changes.clear();
  }
};

}  // namespace gpushm::core
