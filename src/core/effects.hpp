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

/// A slot's word in the state table: a generation and its state; no state: the slot is free.
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
  /// The answer if the exporter confirms that the memory is unchanged; null: it waits for the name.
  std::shared_ptr<const segment> offered = nullptr;
};

/// The only answer of an open.
struct open_answer {
  session_id session = 0;
  std::uint64_t request = 0;
  std::uint32_t index = 0;
  std::shared_ptr<const segment> found;  ///< null: refused
  std::optional<error> why;              ///< of a refusal; nullopt: no memory for a text
  bool late = false;                     ///< it was in `effects::waits` before
};

/// Asks the exporter whether the segment's memory is still what it shared; pass its answer to
/// `domain::confirmed`.
struct question {
  session_id exporter = 0;
  std::uint64_t confirmation = 0;
  gpushm::generation generation = 0;
};

/// An event on a segment. `of` may already be erased from the domain; its name and generation
/// remain valid.
struct change {
  event_kind kind = event_kind::resync;
  std::shared_ptr<const segment> of;
  std::uint32_t leases = 0;
  std::int32_t peer_pid = 0;
  session_id holder = 0;  ///< its cache must drop the segment; 0: for subscribers of the name
};

/// Side effects of a call, to be carried out in this order: the state table first, because a client
/// that has an answer may read it; answers before events about them; each kind in order of
/// occurrence.
struct effects {
  std::vector<slot_word> slots;
  std::vector<open_waits> waits;
  std::vector<open_answer> answers;
  std::vector<question> questions;
  std::vector<change> changes;

  /// Keeps the capacity.
  void clear() noexcept {
    slots.clear();
    waits.clear();
    answers.clear();
    questions.clear();
    changes.clear();
  }
};

}  // namespace gpushm::core
