// SPDX-License-Identifier: Apache-2.0
// Versions of names, and aliases (docs/adr/0046).
#include <algorithm>
#include <array>
#include <utility>

#include "base/segments/exporter_bound.hpp"
#include "base/segments/names.hpp"
#include "base/segments/versioned_names.hpp"
#include "core/domain.hpp"
#include "core/inconsistent.hpp"

namespace gpushm::core {

namespace {

/// Kept for a version, besides its names, and for each of its parts.
constexpr std::uint64_t version_cost = 1'024;
constexpr std::uint64_t part_cost = 192;

std::uint64_t memory_of(const std::string& base, const std::vector<std::string>& parts) {
  std::uint64_t memory = version_cost + base.size();
  for (const std::string& part : parts) {
    memory += part_cost + part.size();
  }
  return memory;
}

std::string versioned(std::string_view base, std::uint64_t number) {
  return base::text_of({base, number, {}, {}});
}

error may_not_manage_name(std::string_view base, const peer* owner) {
  return {errc::permission_denied,
          {},
          {},
          "the versions of " + std::string(base) + " belong to another uid, pod or container",
          owner != nullptr && owner->uid_known
              ? "ask uid " + std::to_string(owner->uid) + ", or the broker's user"
              : "ask the broker's user"};
}

}  // namespace

// ---- permissions and look-up ----

void domain::check_manages(session_id session, std::string_view base) const {
  const peer* const owner = versions_.owner_of(base);
  if (owner == nullptr || is_operator(session)) {
    return;
  }
  const auto at = sessions_.find(session);
  if (at == sessions_.end() || !is_same_member(*owner, *at->second.who)) {
    throw may_not_manage_name(base, owner);
  }
}

/// Parts are memory that the broker holds: what ends with its creator would end the version.
void domain::check_reservation_of_version(session_id session,
                                          const reservation& wanted,
                                          bool is_handed_back) const {
  if (!base::is_versioned_name(wanted.name)) {
    if (versions_.has_name(wanted.name)) {
      throw error(errc::already_exists,
                  {},
                  {},
                  "versions of this name exist in domain " + name_,
                  "create the next version, or choose another name");
    }
    return;
  }
  const base::versioned_name parsed = base::parse_versioned_name({}, wanted.name);
  if (parsed.number == 0) {
    throw error(errc::invalid_argument,
                {},
                {},
                "a segment cannot be created under an alias",
                "create it under the version's number, which `create_version` returns");
  }
  if (wanted.replaces != 0) {
    throw error(errc::invalid_argument,
                {},
                {},
                "a segment of a version replaces no other",
                "create the next version");
  }
  if (is_handed_back) {
    throw error(errc::gone_or_replaced,
                {},
                {},
                "versions do not outlive their broker and its keeper",
                "create the version again");
  }
  if (wanted.backend != backend::host && wanted.backend != backend::cuda_vmm) {
    throw error(errc::invalid_argument,
                {},
                {},
                "only memory of the backends host and cuda-vmm can belong to a version",
                "create a segment of one of them, and copy");
  }
  if (!versions_.state_of(parsed.base, parsed.number)) {
    throw no_such_segment(wanted.name);
  }
  check_manages(session, parsed.base);
}

/// `name` is valid. Allocates nothing.
segment* domain::published_of(std::string_view name) const noexcept {
  if (!base::is_versioned_name(name)) {
    return of_name(published_, name);
  }
  const auto parsed = base::parse_versioned_name({}, name);
  segment* at = nullptr;
  if (parsed.number != 0) {
    at = of_name(published_, name);
  } else if (const std::uint64_t number = versions_.target_of(parsed.base, parsed.alias)) {
    std::array<char, 2 * max_name_bytes> text{};
    const char* const end = base::write_text(text.data(), {parsed.base, number, {}, parsed.part});
    at = of_name(published_, {text.data(), static_cast<std::size_t>(end - text.data())});
  }
  return at != nullptr && versions_.is_visible(at->generation) ? at : nullptr;
}

alias_word domain::alias_of(std::string_view name) const noexcept {
  if (!base::is_versioned_name(name)) {
    return {};
  }
  const auto parsed = base::parse_versioned_name({}, name);
  return parsed.number != 0 ? alias_word{}
                            : versions_.word_of(parsed.base, parsed.alias).value_or(alias_word{});
}

error domain::no_such_version(std::string_view name) const {
  const bool is_versioned = base::is_versioned_name(name);
  const base::versioned_name parsed =
      is_versioned ? base::parse_versioned_name({}, name) : base::versioned_name{name, 0, {}, {}};
  std::string existing;
  constexpr std::size_t most = 4;
  std::size_t count = 0;
  versions_.visit_versions(
      parsed.base,
      [&](std::uint64_t number, version_state state, bool, std::uint64_t, std::size_t) {
        if (state == version_state::published && count++ < most) {
          existing += (existing.empty() ? "" : ", ") + versioned(parsed.base, number);
        }
      });
  if (existing.empty()) {
    return {errc::no_such_segment,
            {},
            {},
            "no version of " + std::string(parsed.base) + " is published in domain " + name_,
            "wait for it with a timeout: a version is published with its last part"};
  }
  if (!is_versioned) {
    return {
        errc::no_such_segment,
        {},
        {},
        "this name has versions in domain " + name_ + ": " + existing,
        "open " + std::string(name) + "@" + std::string(base::latest_alias) + ", or one of these"};
  }
  return {
      errc::no_such_segment,
      {},
      {},
      "no such version, alias or part in domain " + name_ + "; published: " + existing,
      "open one of these, or " + std::string(parsed.base) + "@" + std::string(base::latest_alias)};
}

// ---- requests ----

std::uint64_t domain::create_version(session_id session, const version_request& wanted) {
  base::check_name({}, wanted.base);
  participant& creator = find_session(session);
  const auto check_part = [&](std::string_view part) {  // under the longest name of a version
    static_cast<void>(base::parse_versioned_name(
        {}, base::text_of({wanted.base, base::max_version_number, {}, part})));
  };
  check_part({});
  std::for_each(wanted.parts.begin(), wanted.parts.end(), check_part);
  if (wanted.number > base::max_version_number) {
    throw error(errc::invalid_argument,
                {},
                {},
                "the version's number is larger than " + std::to_string(base::max_version_number),
                "give a lower one, or none");
  }
  if (const segment* const other = named(wanted.base)) {
    throw error(errc::already_exists,
                {},
                {},
                "a segment has this name in domain " + name_,
                "remove it first, or choose another name",
                {.pid = other->creator.pid});
  }
  check_manages(session, wanted.base);
  const bool is_new_name = !versions_.has_name(wanted.base);
  const std::uint64_t id = next_generation_;
  charges held = new_charges(session);
  held.take(resource::memory_bytes, memory_of(wanted.base, wanted.parts));
  charges held_of_alias = new_charges(session);
  std::uint32_t slot = 0;
  if (is_new_name) {
    held_of_alias.take(resource::segments, 1);
  }
  make_room_for_moves();
  creator.building.insert(id);
  std::uint64_t number = 0;
  try {
    version_records_[id] = {std::move(held), session};
    if (is_new_name) {
      slot = slots_.take();
      try {
        alias_charges_[slot] = std::move(held_of_alias);
        number = versions_.create(wanted.base,
                                  wanted.number,
                                  wanted.parts,
                                  wanted.keep,
                                  slot,
                                  {id, *creator.who, session});
      } catch (...) {
        alias_charges_.erase(slot);
        static_cast<void>(slots_.release(slot));
        throw;
      }
    } else {
      number = versions_.create(
          wanted.base, wanted.number, wanted.parts, wanted.keep, 0, {id, *creator.who, session});
    }
  } catch (...) {
    version_records_.erase(id);
    creator.building.erase(id);
    throw;
  }
  ++next_generation_;
  note(record_kind::numbers);
  if (is_new_name) {
    effects_.slots.push_back(slots_.set(slot, id, segment_state::removed));  // it refers to nothing
  }
  settle_versions();
  return number;
}

void domain::withdraw_version(session_id session, std::string_view base, std::uint64_t number) {
  static_cast<void>(find_session(session));
  check_manages(session, base);
  make_room_for_moves();
  versions_.withdraw(base, number, next_generation_);
  settle_versions();
}

void domain::remove_version(session_id session, std::string_view base, std::uint64_t number) {
  static_cast<void>(find_session(session));
  check_manages(session, base);
  make_room_for_moves();
  versions_.end(base, number, next_generation_);
  settle_versions();
}

void domain::move_alias(session_id session,
                        std::string_view base,
                        std::string_view alias,
                        std::uint64_t number) {
  static_cast<void>(find_session(session));
  if (!base::is_alias(alias)) {
    throw error(errc::invalid_argument,
                {},
                {},
                "this is not the name of an alias",
                "write a lower-case letter and up to 31 lower-case letters, digits and hyphens");
  }
  check_manages(session, base);
  make_room_for_moves();
  if (versions_.word_of(base, alias)) {
    versions_.move(base, alias, number, 0, next_generation_);
    settle_versions();
    return;
  }
  const peer* const owner = versions_.owner_of(base);
  if (owner == nullptr) {
    throw no_such_version(base);
  }
  charges held = charges_of(*owner);
  held.take(resource::segments, 1);
  const std::uint32_t slot = slots_.take();
  try {
    alias_charges_[slot] = std::move(held);
    versions_.move(base, alias, number, slot, next_generation_);
  } catch (...) {
    alias_charges_.erase(slot);
    static_cast<void>(slots_.release(slot));
    throw;
  }
  settle_versions();
}

void domain::remove_alias(session_id session, std::string_view base, std::string_view alias) {
  static_cast<void>(find_session(session));
  check_manages(session, base);
  make_room_for_moves();
  versions_.remove_alias(base, alias);
  settle_versions();
}

resolved_version domain::resolve(std::string_view name) const {
  const auto parsed = base::is_versioned_name(name)
                          ? base::parse_versioned_name({}, name)
                          : base::versioned_name{name, 0, base::latest_alias, {}};
  base::check_name({}, parsed.base);
  resolved_version result;
  result.number =
      parsed.number != 0 ? parsed.number : versions_.target_of(parsed.base, parsed.alias);
  result.alias = parsed.number != 0 ? alias_word{} : alias_of(name);
  if (result.number == 0 ||
      versions_.state_of(parsed.base, result.number) != version_state::published) {
    throw no_such_version(name);
  }
  return result;
}

std::vector<version_facts> domain::versions_of(std::string_view base) const {
  std::vector<version_facts> result;
  versions_.visit_versions(base,
                           [&](std::uint64_t number,
                               version_state state,
                               bool withdrawn,
                               std::uint64_t bytes,
                               std::size_t held) {
                             result.push_back({number, state, withdrawn, bytes, held, {}});
                           });
  versions_.visit_aliases(base, [&](std::string_view alias, std::uint64_t number) {
    for (version_facts& each : result) {
      if (each.number == number) {
        each.aliases.emplace_back(alias);
      }
    }
  });
  return result;
}

std::vector<domain::alias_facts> domain::aliases(std::size_t count,
                                                 std::size_t bytes,
                                                 std::size_t& others) const {
  std::vector<alias_facts> result;
  versions_.visit_all_aliases(
      [&](std::string_view base, std::string_view alias, std::uint64_t number) {
        if (number == 0) {
          return true;
        }
        std::string name = base::text_of({base, 0, alias, {}});
        if (result.size() == count || name.size() > bytes) {
          return false;
        }
        bytes -= name.size();
        result.push_back({std::move(name), number});
        return true;
      });
  others = alias_charges_.size() - result.size();
  return result;
}

// ---- segments ----

/// A part is published by its creator. All parts of its version are, if this was the last one.
void domain::publish_part(session_id session, segment& part) {
  if (!versions_.is_last_part(part.generation)) {
    part.complete = true;
    static_cast<void>(versions_.complete(part.generation, next_generation_));
    note(record_kind::segment, part.generation);
    return;
  }
  const std::set<gpushm::generation> parts = versions_.segments_beside(part.generation);
  effects_.changes.reserve(effects_.changes.size() + min_capacity + parts.size());
  make_room_to_record(parts.size());
  make_room_for_moves();
  part.complete = true;  // nothing from here on can fail
  static_cast<void>(versions_.complete(part.generation, next_generation_));
  for (const gpushm::generation each : parts) {
    segment& published = *segments_.at(each);
    publish_now(session, published);
  }
  settle_versions();
  for (const gpushm::generation each : parts) {
    wake(*segments_.at(each));
  }
}

/// It has the name from now on.
void domain::publish_now(session_id session, segment& reserved) {
  forget_dead(reserved.name);  // of one that it was to replace
  published_.insert(reserved_.extract(reserved.name));
  reserved.replaces = 0;
  if (const auto creator = sessions_.find(reserved.creator_session); creator != sessions_.end()) {
    creator->second.unpublished.erase(reserved.name);
  }
  reserved.published = true;
  note(record_kind::metadata, reserved.generation);
  note(record_kind::segment, reserved.generation);
  emit(event_kind::published, reserved, actor_of(session));
}

// ---- what follows ----

void domain::make_room_for_moves() {
  effects_.slots.reserve(effects_.slots.size() + min_capacity +
                         2UL * limits_.versions.aliases_per_name);
}

bool domain::has_room_for_moves() const noexcept {
  const std::size_t most = 2UL * limits_.versions.aliases_per_name;
  return effects_.slots.capacity() - effects_.slots.size() >= most &&
         effects_.changes.capacity() - effects_.changes.size() >= most && has_room_to_record(most);
}

/// Shows the moves of aliases, and records what has changed. Allocates nothing, as far as there is
/// room for effects.
void domain::settle_versions() noexcept {
  bool has_moved = false;
  while (const auto move = versions_.take_move()) {
    has_moved = true;
    effects_.slots.push_back(
        slots_.set(move->word.slot,
                   move->word.generation,
                   move->number != 0 ? segment_state::live : segment_state::removed));
    if (!subscriptions_.empty()) {
      if (!std::exchange(effects_.has_numbered_changes, true)) {
        note(record_kind::numbers);
      }
      change moved;
      moved.kind = event_kind::alias_moved;
      moved.number = next_change_++;
      moved.moved = *move;
      effects_.changes.push_back(std::move(moved));
    }
    wake_alias(*move->name);
  }
  if (has_moved) {
    ++next_generation_;  // the next move has another one
    note(record_kind::numbers);
  }
  while (const auto slot = versions_.take_free_slot()) {
    effects_.slots.push_back(slots_.release(*slot));
    alias_charges_.erase(*slot);
  }
  const auto changes = versions_.take_changes();
  if (!changes) {
    effects_.too_many_records = true;
    return;
  }
  for (const version_table::changed& each : *changes) {
    note(each.is_alias ? record_kind::alias : record_kind::version, each.key);
    const auto record = each.is_alias ? version_records_.end() : version_records_.find(each.key);
    if (record == version_records_.end() || versions_.is_building(each.key)) {
      continue;
    }
    const session_id builder = std::exchange(record->second.builder, 0);
    if (const auto at = sessions_.find(builder); at != sessions_.end()) {
      at->second.building.erase(each.key);
    }
    if (!versions_.has_record(each.key)) {
      version_records_.erase(record);
    }
  }
}

/// Opens that wait for the alias or for parts under it are answered in `work`.
void domain::wake_alias(std::string_view alias) noexcept {
  for (auto at = waiting_by_name_.lower_bound(alias);
       at != waiting_by_name_.end() && at->first.starts_with(alias);
       ++at) {
    const std::string_view rest = std::string_view(at->first).substr(alias.size());
    if (rest.empty() || rest.front() == '/') {
      due_.splice(due_.end(), at->second.place);  // no effect if it is there
    }
  }
}

/// After a segment of a published version: opens that wait for it under an alias.
void domain::wake_under_aliases(const segment& published) noexcept {
  const auto parsed = base::parse_versioned_name({}, published.name);
  versions_.visit_aliases(parsed.base, [&](std::string_view alias, std::uint64_t number) {
    if (number != parsed.number) {
      return;
    }
    std::array<char, 2 * max_name_bytes> text{};
    const char* const end = base::write_text(text.data(), {parsed.base, 0, alias, {}});
    wake_alias({text.data(), static_cast<std::size_t>(end - text.data())});
  });
}

/// Some segments of versions that end, a version that nobody needs, and the holders of what an
/// alias has left.
void domain::work_on_versions() {
  if (!versions_.has_work()) {
    return;
  }
  if (has_room_for_moves()) {
    static_cast<void>(versions_.end_unused());
  }
  std::size_t left = leases_per_turn();
  for (; left != 0; --left) {
    const gpushm::generation next = versions_.next_to_withdraw();
    if (next == 0) {
      break;
    }
    segment& ending = *segments_.at(next);
    if (!has_room_to_end(ending)) {
      break;
    }
    if (ending.complete && !ending.published) {
      remember_dead(ending.name);  // its version was not published
    }
    withdraw(ending);
    free_if_unused(ending);
  }
  for (; left != 0; --left) {
    const gpushm::generation next = versions_.left_by_alias();
    if (next == 0) {
      break;
    }
    const segment& unused = *segments_.at(next);
    if (!has_room_to_end(unused)) {
      break;
    }
    versions_.skip_left();
    for (const lease& held : unused.leases) {
      if (ending_sessions_ == 0 || !is_ending(held.holder)) {
        effects_.changes.push_back({event_kind::alias_moved,
                                    unused.shared_from_this(),
                                    static_cast<std::uint32_t>(unused.leases.size()),
                                    0,
                                    held.holder});
      }
    }
  }
  settle_versions();
}

// ---- as values ----

void domain::restore_version(std::uint64_t id, const saved_version& saved) {
  versions_.restore(id, saved);
  charges held = charges_of(saved.creator);
  held.charge(resource::memory_bytes, memory_of(saved.base, saved.parts));
  const auto builder = sessions_.find(saved.session);
  if (builder != sessions_.end() && saved.state == version_state::building) {
    builder->second.building.insert(id);
    version_records_[id] = {std::move(held), saved.session};
  } else {
    version_records_[id] = {std::move(held), 0};
  }
}

void domain::restore_alias(std::uint32_t slot, const saved_alias& saved) {
  versions_.restore(slot, saved);
  require(slots_.take({slot,
                       saved.generation,
                       saved.number != 0 ? segment_state::live : segment_state::removed}),
          "an alias has the slot of another object");
  const peer* const owner = versions_.owner_of(saved.base);
  charges held = charges_of(*owner);
  held.charge(resource::segments, 1);
  alias_charges_[slot] = std::move(held);
}

}  // namespace gpushm::core
