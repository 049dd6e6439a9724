// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "gpushm/types.hpp"

namespace gpushm::core {

/// Versions of a name that stay although no process has them and no alias refers to them: the
/// newest ones, as long as neither limit is exceeded.
struct retention {
  std::uint32_t versions = 1;
  std::uint64_t bytes = 0;  ///< 0: no limit
  friend bool operator==(const retention&, const retention&) = default;
};

/// The word of an alias in the state table.
struct alias_word {
  std::uint32_t slot = 0;
  gpushm::generation generation = 0;  ///< that of the last move
  friend bool operator==(const alias_word&, const alias_word&) = default;
};

/// An alias that has moved.
struct alias_move {
  std::string base;
  std::string alias;
  alias_word word;
  std::uint64_t number = 0;  ///< what it refers to now; 0: nothing
  std::uint64_t left = 0;    ///< what it referred to before; 0: nothing
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
  enum class state : std::uint8_t { building, published, ending };

  explicit version_table(const limits& limits) noexcept : limits_(limits) {}

  // ---- versions ----

  [[nodiscard]] bool has_name(std::string_view base) const { return names_.count(base) != 0; }
  /// Begins a version and returns its number: `number`, or, if that is 0, the one after the highest
  /// so far. `parts`: their names; none: one part with an empty name. `latest_slot`: for the alias
  /// `latest`; ignored if the name exists. Throws invalid_argument (the number is not higher than
  /// all before, or two parts have one name), share_exceeded, std::bad_alloc.
  std::uint64_t create(std::string_view base,
                       std::uint64_t number,
                       std::vector<std::string> parts,
                       const retention& keep,
                       std::uint32_t latest_slot);
  /// Returns nullopt if there is no such version.
  [[nodiscard]] std::optional<state> state_of(std::string_view base, std::uint64_t number) const;
  /// `latest` does not refer to the version from now on. Throws no_such_segment.
  void withdraw(std::string_view base, std::uint64_t number, gpushm::generation next);
  /// Ends a version: none of its segments is visible any longer. Throws no_such_segment,
  /// invalid_argument (an alias other than `latest` refers to it).
  void end(std::string_view base, std::uint64_t number, gpushm::generation next);
  /// Ends a version that is not published, because one of its creators has gone. No effect on
  /// others.
  void fail(std::string_view base, std::uint64_t number, gpushm::generation next) noexcept;

  // ---- segments ----

  /// A segment of a version is reserved: a part, while that is being built, or another one, once it
  /// is published. Throws no_such_segment (no such version, or no such part of one that is being
  /// built), already_exists (the part is reserved), std::bad_alloc.
  void reserve(std::string_view base,
               std::uint64_t number,
               std::string_view part,
               gpushm::generation generation,
               std::uint64_t bytes);
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

  /// Throws std::bad_alloc; the move is returned again then.
  [[nodiscard]] std::optional<alias_move> take_move();
  /// A segment of a version that ends, which the domain withdraws, and reports by `forget`; 0:
  /// none.
  [[nodiscard]] gpushm::generation next_to_withdraw() const noexcept;
  /// Looks at the versions of one name: ends one that no process has, that no alias refers to, and
  /// that is not kept. Returns false if there is no name to look at.
  bool end_unused() noexcept;
  /// The slot of an alias that has ended.
  [[nodiscard]] std::optional<std::uint32_t> take_free_slot() noexcept;

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
    version_table::state state = version_table::state::building;
    bool withdrawn = false;
    std::vector<part> parts;
    std::size_t incomplete = 0;             ///< parts
    std::set<gpushm::generation> segments;  ///< parts that are reserved, and the others
    std::uint64_t bytes = 0;
    std::size_t held = 0;         ///< segments that a process has
    std::list<version*> waiting;  ///< its node for `ending_`
  };
  struct alias {
    std::string text;
    name* owner = nullptr;
    alias_word word;
    std::uint64_t target = 0;
    std::uint64_t left = 0;          ///< before the moves that were not taken
    std::list<alias*> waiting;       ///< its node for `moved_`; empty while it is there
    std::list<std::uint32_t> freed;  ///< its node for `free_slots_`
  };
  using aliases = std::map<std::string, alias, std::less<>>;
  struct name {
    std::string base;
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
  [[nodiscard]] version& existing(std::string_view base, std::uint64_t number);
  [[nodiscard]] const alias* find_alias(std::string_view base,
                                        std::string_view text) const noexcept;
  /// Adds an alias of `owner` that refers to nothing to `where`. Throws std::bad_alloc.
  static alias& make_alias(name& owner, aliases& where, std::string_view text, std::uint32_t slot);
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
  std::list<std::uint32_t> free_slots_;
};

}  // namespace gpushm::core
