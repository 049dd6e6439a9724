// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/effects.hpp"
#include "core/segment.hpp"
#include "gpushm/types.hpp"

namespace gpushm::core {

/// Versions of a name that stay although no process has them and no alias refers to them: the
/// newest ones, as long as neither limit is exceeded.
struct retention {
  std::uint32_t versions = 1;
  std::uint64_t bytes = 0;  ///< 0: no limit
  friend bool operator==(const retention&, const retention&) = default;
};

/// Where a version comes from.
struct version_origin {
  std::uint64_t id = 0;  ///< of its record; no other version has it
  peer creator = {};
  session_id session = 0;  ///< 0 once that has ended
  friend bool operator==(const version_origin&, const version_origin&) = default;
};

/// A version as a value. Key: `version_origin::id`.
struct saved_version {
  std::string base;
  std::uint64_t number = 0;
  version_state state = version_state::building;
  bool withdrawn = false;
  std::vector<std::string> parts;
  peer creator = {};
  session_id session = 0;
  friend bool operator==(const saved_version&, const saved_version&) = default;
};

/// An alias as a value. Key: its slot. `latest` has what its name has, too.
struct saved_alias {
  std::string base;
  std::string alias;
  gpushm::generation generation = 0;  ///< of its last move
  std::uint64_t number = 0;           ///< what it refers to; 0: nothing
  std::uint64_t last = 0;             ///< the highest number that was given
  retention keep = {};
  peer owner = {};
  friend bool operator==(const saved_alias&, const saved_alias&) = default;
};

/// The versions of a domain's names, their parts, and the aliases (docs/adr/0046): which numbers
/// exist, what is visible, what an alias refers to, and what ends. It has no segments: the domain
/// reports what happens to them, by generation, and carries out what follows. The numbers of slots
/// and generations are the domain's, too.
///
/// Invariants: the numbers of a name only rise; a version is published once, with its last part;
/// an alias refers to a published version or to nothing, `latest` to the highest one that is not
/// withdrawn; each move of an alias changes its word.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe. Never blocks. Functions either
/// complete or throw and change nothing; what ends something is noexcept and allocates nothing.
class version_table {
 public:
  struct limits {
    std::uint32_t versions_per_name = 64;
    std::uint32_t aliases_per_name = 16;
    std::uint32_t parts_per_version = 1'024;
  };
  using state = version_state;

  explicit version_table(const limits& limits);

  // ---- versions ----

  [[nodiscard]] bool has_name(std::string_view base) const { return names_.count(base) != 0; }
  /// Begins a version and returns its number: `number`, or, if that is 0, the one after the highest
  /// so far. `parts`: their names; none: one part with an empty name. `latest_slot`: for the alias
  /// `latest`, which has the word of `origin.id` until it moves; ignored if the name exists. The
  /// creator of the first version owns the name. Throws invalid_argument (the number is not higher
  /// than all before, or two parts have one name), share_exceeded, std::bad_alloc.
  std::uint64_t create(std::string_view base,
                       std::uint64_t number,
                       std::vector<std::string> parts,
                       const retention& keep,
                       std::uint32_t latest_slot,
                       const version_origin& origin = {});
  [[nodiscard]] bool has_record(std::uint64_t id) const noexcept { return by_id_.contains(id); }
  /// Returns null if there is no such name.
  [[nodiscard]] const peer* owner_of(std::string_view base) const noexcept;
  /// Returns nullopt if there is no such version.
  [[nodiscard]] std::optional<state> state_of(std::string_view base, std::uint64_t number) const;
  /// `latest` does not refer to the version from now on. Throws no_such_segment.
  void withdraw(std::string_view base, std::uint64_t number, gpushm::generation next);
  /// Ends a version: none of its segments is visible any longer. Throws no_such_segment,
  /// invalid_argument (an alias other than `latest` refers to it).
  void end(std::string_view base, std::uint64_t number, gpushm::generation next);
  /// Ends a version that is not published, because its creator or that of a part has gone. No
  /// effect on others.
  void fail(std::uint64_t id, gpushm::generation next) noexcept;
  void fail_of(gpushm::generation generation, gpushm::generation next) noexcept;
  [[nodiscard]] bool is_building(std::uint64_t id) const noexcept {
    const auto at = by_id_.find(id);
    return at != by_id_.end() && at->second->state == state::building;
  }
  /// The session of its creator is another one now; 0: it has ended.
  void set_session(std::uint64_t id, session_id session) noexcept;
  /// The versions of a name, the highest first: calls `visit(number, state, withdrawn, bytes,
  /// held)`.
  template <typename Visit>
  void visit_versions(std::string_view base, Visit&& visit) const {
    if (const auto owner = names_.find(base); owner != names_.end()) {
      auto at = owner->second.versions.rbegin();
      while (at != owner->second.versions.rend()) {
        const version& each = (at++)->second;
        visit(each.number, each.state, each.withdrawn, each.bytes, each.held);
      }
    }
  }
  /// The aliases of a name: calls `visit(alias, number)`.
  template <typename Visit>
  void visit_aliases(std::string_view base, Visit&& visit) const {
    if (const auto owner = names_.find(base); owner != names_.end()) {
      for (const auto& [text, each] : owner->second.aliases) {
        visit(std::string_view(text), each.target);
      }
    }
  }
  /// Some aliases of all names, in the order of the names: calls `visit(base, alias, number)` until
  /// it returns false.
  template <typename Visit>
  void visit_all_aliases(Visit&& visit) const {
    for (const auto& [base, owner] : names_) {
      for (const auto& [text, each] : owner.aliases) {
        if (!visit(std::string_view(base), std::string_view(text), each.target)) {
          return;
        }
      }
    }
  }

  // ---- segments ----

  /// A segment of a version is reserved: a part, while that is being built, or another one, once it
  /// is published. Throws no_such_segment (no such version, or no such part of one that is being
  /// built), already_exists (the part is reserved), std::bad_alloc.
  void reserve(std::string_view base,
               std::uint64_t number,
               std::string_view part,
               gpushm::generation generation,
               std::uint64_t bytes);
  /// Undoes `reserve`.
  void unreserve(gpushm::generation generation) noexcept;
  /// Whether this is the only part that its version, which is being built, still needs.
  [[nodiscard]] bool is_last_part(gpushm::generation generation) const noexcept;
  /// Whether it is one of the parts of a version that is being built.
  [[nodiscard]] bool is_part_being_built(gpushm::generation generation) const noexcept;
  /// Whether it is one of the parts of a version.
  [[nodiscard]] bool is_part(gpushm::generation generation) const noexcept;
  /// The segments of the version that has this one. Precondition: it is in `reserve`, and not in
  /// `forget`.
  [[nodiscard]] const std::set<gpushm::generation>& segments_beside(
      gpushm::generation generation) const {
    return segments_.at(generation).in->segments;
  }
  /// Whether others may see a segment that was published by itself: its version is published, or it
  /// belongs to none.
  [[nodiscard]] bool is_visible(gpushm::generation generation) const noexcept;
  /// A segment was published by itself. Returns true if that has published its version.
  bool complete(gpushm::generation generation, gpushm::generation next) noexcept;
  /// A process has the first lease on a segment.
  void hold(gpushm::generation generation) noexcept;
  /// The last lease on a segment has ended.
  void release(gpushm::generation generation) noexcept;
  /// A segment is gone. Its version ends if that was one of its parts.
  void forget(gpushm::generation generation, gpushm::generation next) noexcept;

  // ---- aliases ----

  /// Lets an alias other than `latest` refer to a published version. `slot`: ignored unless the
  /// alias is new. Throws no_such_segment (no such version), invalid_argument (it is not published,
  /// or the alias is `latest`), share_exceeded, std::bad_alloc.
  void move(std::string_view base,
            std::string_view alias,
            std::uint64_t number,
            std::uint32_t slot,
            gpushm::generation next);
  /// Throws no_such_segment, invalid_argument (`latest`).
  void remove_alias(std::string_view base, std::string_view alias);
  /// What an alias refers to; 0: nothing.
  [[nodiscard]] std::uint64_t target_of(std::string_view base, std::string_view alias) const;
  /// Returns nullopt if there is no such alias.
  [[nodiscard]] std::optional<alias_word> word_of(std::string_view base,
                                                  std::string_view alias) const;

  // ---- what follows from the calls above: to be called until they return nothing ----

  [[nodiscard]] std::optional<alias_move> take_move() noexcept;
  /// A segment of a version that the last alias has left, whose holders are to hear it; 0: none.
  [[nodiscard]] gpushm::generation left_by_alias() noexcept;
  /// The next one. Precondition: `left_by_alias` returned a segment.
  void skip_left() noexcept;
  /// A segment of a version that ends, which the domain withdraws, and reports by `forget`; 0:
  /// none.
  [[nodiscard]] gpushm::generation next_to_withdraw() const noexcept;
  /// Looks at the versions of one name: ends one that no process has, that no alias refers to, and
  /// that is not kept. Returns false if there is no name to look at.
  bool end_unused() noexcept;
  /// The slot of an alias that has ended.
  [[nodiscard]] std::optional<std::uint32_t> take_free_slot() noexcept;
  /// Whether versions wait for `next_to_withdraw`, `end_unused` or `left_by_alias`.
  [[nodiscard]] bool has_work() const noexcept {
    return !ending_.empty() || !to_look_at_.empty() || !left_.empty();
  }

  // ---- as values ----

  struct changed {
    bool is_alias = false;
    std::uint64_t key = 0;
  };
  /// What was created, changed or erased since the last call; nullopt: more than were counted, so
  /// anything may have changed. Views until the next call of any other function.
  [[nodiscard]] std::optional<std::span<const changed>> take_changes() noexcept;
  [[nodiscard]] std::optional<saved_version> saved_version_of(std::uint64_t id) const;
  [[nodiscard]] std::optional<saved_alias> saved_alias_of(std::uint32_t slot) const;
  /// Calls `visit(changed)` for each record.
  template <typename Visit>
  void visit_records(Visit&& visit) const {
    for (const auto& [id, each] : by_id_) {
      visit(changed{false, id});
    }
    for (const auto& [slot, each] : by_slot_) {
      visit(changed{true, slot});
    }
  }
  /// Calls `visit(id, session)` for the versions that are being built.
  template <typename Visit>
  void visit_building(Visit&& visit) const {
    for (const auto& [id, each] : by_id_) {
      if (each->state == state::building) {
        visit(id, each->origin.session);
      }
    }
  }
  /// Versions first, then aliases, then segments, each before the next kind, and nothing else
  /// before. Throws invalid_argument if they contradict each other.
  void restore(std::uint64_t id, const saved_version& saved);
  void restore(std::uint32_t slot, const saved_alias& saved);
  void restore_segment(std::string_view base,
                       std::uint64_t number,
                       std::string_view part,
                       gpushm::generation generation,
                       std::uint64_t bytes,
                       bool is_complete);
  /// After all of them: `left_by_alias` returns the segments of each published version to which no
  /// alias refers, as which ones were returned before is not saved.
  void finish_restoring() noexcept;

  [[nodiscard]] std::size_t name_count() const noexcept { return names_.size(); }
  [[nodiscard]] std::size_t segment_count() const noexcept { return segments_.size(); }

 private:
  struct part {
    std::string name;
    gpushm::generation generation = 0;  ///< 0: not reserved, or gone
    bool complete = false;
  };
  struct name;
  struct version {
    name* owner = nullptr;
    std::uint64_t number = 0;
    version_origin origin;
    version_table::state state = version_table::state::building;
    bool withdrawn = false;
    std::vector<part> parts;
    std::size_t incomplete = 0;             ///< parts
    std::set<gpushm::generation> segments;  ///< parts that are reserved, and the others
    std::uint64_t bytes = 0;
    std::size_t held = 0;            ///< segments that a process has
    std::list<version*> waiting;     ///< its node for `ending_`
    std::list<version*> leaving;     ///< its node for `left_`
    gpushm::generation skipped = 0;  ///< of its segments in `left_`: those up to this one
  };
  struct alias {
    std::string text;
    std::shared_ptr<const std::string> full;  ///< with the base
    name* owner = nullptr;
    alias_word word;
    std::uint64_t target = 0;
    std::list<alias*> waiting;       ///< its node for `moved_`; empty while it is there
    std::list<std::uint32_t> freed;  ///< its node for `free_slots_`
  };
  using aliases = std::map<std::string, alias, std::less<>>;
  struct name {
    std::string base;
    peer owner;
    retention keep;
    std::uint64_t last = 0;
    std::map<std::uint64_t, version> versions;
    version_table::aliases aliases;  ///< `latest` always
    std::list<name*> waiting;        ///< its node for `to_look_at_`
  };
  struct place {
    version* in = nullptr;
    std::size_t part = none;
    std::uint64_t bytes = 0;
    bool is_held = false;
    static constexpr std::size_t none = ~std::size_t{0};
  };

  /// In `names_`; null: there is no such version.
  template <typename Names>
  [[nodiscard]] static auto find(Names& names, std::string_view base, std::uint64_t number) noexcept
      -> decltype(&names.begin()->second.versions.begin()->second) {
    const auto owner = names.find(base);
    if (owner == names.end()) {
      return nullptr;
    }
    const auto at = owner->second.versions.find(number);
    return at == owner->second.versions.end() ? nullptr : &at->second;
  }
  /// Returns null if it is none of the parts of a version.
  [[nodiscard]] const place* find_part(gpushm::generation generation) const noexcept;
  [[nodiscard]] version& existing(std::string_view base, std::uint64_t number);
  [[nodiscard]] const alias* find_alias(std::string_view base,
                                        std::string_view text) const noexcept;
  /// Adds an alias of `owner` that refers to nothing to `where`. Throws std::bad_alloc.
  static alias& make_alias(name& owner, aliases& where, std::string_view text, std::uint32_t slot);
  static version& make_version(name& owner,
                               std::map<std::uint64_t, version>& where,
                               std::uint64_t number,
                               std::vector<std::string> parts,
                               const version_origin& origin);
  void note(const version& changed) noexcept { note({false, changed.origin.id}); }
  void note(const alias& changed) noexcept { note({true, changed.word.slot}); }
  void note(changed changed) noexcept;
  void begin_to_end(version& ending, gpushm::generation next) noexcept;
  void refer(alias& moved, std::uint64_t number, gpushm::generation next) noexcept;
  void follow_publications(name& owner, gpushm::generation next) noexcept;
  void look_later(name& owner) noexcept;
  void erase(alias& gone) noexcept;
  void erase_if_empty(version& ended) noexcept;
  [[nodiscard]] static bool is_referred_to(const name& owner, std::uint64_t number) noexcept;

  limits limits_;
  std::map<std::string, name, std::less<>> names_;
  std::unordered_map<gpushm::generation, place> segments_;
  std::list<version*> ending_;
  std::list<alias*> moved_;
  std::list<name*> to_look_at_;
  std::list<version*> left_;
  std::list<std::uint32_t> free_slots_;
  std::unordered_map<std::uint64_t, version*> by_id_;
  std::unordered_map<std::uint32_t, alias*> by_slot_;
  std::vector<changed> changed_;  ///< its capacity never changes
  std::size_t taken_ = 0;         ///< of `changed_`: returned by `take_changes`
  bool is_too_much_changed_ = false;
};

}  // namespace gpushm::core
