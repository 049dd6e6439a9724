// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
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

/// The word of an alias in the state table.
struct alias_word {
  std::uint32_t slot = 0;
  gpushm::generation generation = 0;  ///< that of the last move
  friend bool operator==(const alias_word&, const alias_word&) = default;
};

/// An open whose reply comes later, unless it is cancelled.
struct open_waits {
  session_id session = 0;
  std::uint64_t request = 0;
  std::uint32_t index = 0;
  /// The reply if the exporter confirms that the memory is unchanged; null: it waits for the name.
  std::shared_ptr<const segment> offered = nullptr;
};

/// The only reply of an open.
struct open_reply {
  session_id session = 0;
  std::uint64_t request = 0;
  std::uint32_t index = 0;
  std::shared_ptr<const segment> found;  ///< null: refused
  std::optional<error> why;              ///< of a refusal; nullopt: no memory for a text
  bool late = false;                     ///< it was in `effects::waits` before
  /// The alias by which it was opened; generation 0: none.
  alias_word alias = {};
};

/// Asks the exporter whether the segment's memory is still what it shared; pass its reply to
/// `domain::confirmed`.
struct question {
  session_id exporter = 0;
  std::uint64_t confirmation = 0;
  gpushm::generation generation = 0;
};

/// An alias that has moved.
struct alias_move {
  std::shared_ptr<const std::string> name;  ///< `BASE@ALIAS`
  alias_word word;
  std::uint64_t number = 0;  ///< what it refers to now; 0: nothing
};

/// An event on a segment. `of` may already be erased from the domain; its name and generation
/// remain valid.
struct change {
  event_kind kind = event_kind::resync;
  std::shared_ptr<const segment> of;
  std::uint32_t leases = 0;
  std::int32_t peer_pid = 0;  ///< as subscribers see it
  session_id holder = 0;      ///< its cache must drop the segment; 0: for subscribers of the name
  actor by = nullptr;
  /// The number of the change for subscribers, without gaps, even across a restart; 0: for a
  /// holder. The next number is recorded with the change (`saved_numbers`).
  std::uint64_t number = 0;
  /// Set for subscribers of `alias_moved`, which has no `of`.
  alias_move moved = {};

  [[nodiscard]] std::string_view name() const noexcept { return of ? of->name : *moved.name; }
  [[nodiscard]] gpushm::generation generation() const noexcept {
    return of ? of->generation : moved.word.generation;
  }
};

/// Kinds of objects that `domain::saved` returns. Stored: never renumber.
enum class record_kind : std::uint32_t {
  numbers = 1,
  session = 2,
  segment = 3,
  metadata = 4,
  lease = 5,
  subscription = 6,
  waiting = 7,
  confirmation = 8,
  end = 9,
  unkept = 10,
  dead_name = 11,
  version = 12,
  alias = 13,
};

/// One of these objects; saved_state.hpp has the meaning of the keys.
struct record_name {
  record_kind kind = record_kind::numbers;
  std::uint64_t first = 0;
  std::uint64_t second = 0;
  friend bool operator==(const record_name&, const record_name&) = default;
  friend bool operator<(const record_name& name, const record_name& two) noexcept {
    return std::tie(name.kind, name.first, name.second) < std::tie(two.kind, two.first, two.second);
  }
};

/// Side effects of a call, to be carried out in this order: the state table first, because a client
/// that has a reply may read it; replies before events about them; each kind in order of
/// occurrence.
struct effects {
  std::vector<slot_word> slots;
  std::vector<open_waits> waits;
  std::vector<open_reply> replies;
  std::vector<question> questions;
  std::vector<change> changes;
  bool has_numbered_changes = false;
  /// Objects that were changed, added or erased, some of them several times; only if
  /// `limits::names_changes`. To be recorded before everything else.
  std::vector<record_name> records;
  /// There were more than fit: everything must be saved.
  bool too_many_records = false;

  /// Keeps the capacity.
  void clear() noexcept {
    slots.clear();
    waits.clear();
    replies.clear();
    questions.clear();
    changes.clear();
    has_numbered_changes = false;
    records.clear();
    too_many_records = false;
  }
};

}  // namespace gpushm::core
