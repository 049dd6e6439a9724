// SPDX-License-Identifier: Apache-2.0
#include "core/versions.hpp"

#include <algorithm>
#include <utility>

#include "base/segments/versioned_names.hpp"
#include "core/inconsistent.hpp"
#include "gpushm/error.hpp"

namespace gpushm::core {

namespace {

using base::latest_alias;

error no_such_version(std::uint64_t number) {
  return {errc::no_such_segment,
          {},
          {},
          "there is no version " + std::to_string(number) + " of this name",
          "choose one of those that exist (`gpushm ls` lists their names)"};
}

error too_many(std::size_t limit, std::string_view what_there_are, std::string_view next_step) {
  return {errc::share_exceeded,
          {},
          {},
          "there are " + std::to_string(limit) + " " + std::string(what_there_are) + ", the limit",
          next_step};
}

error latest_follows() {
  return {errc::invalid_argument,
          {},
          {},
          "the alias latest follows publications by itself",
          "move an alias with another name, or withdraw the newest version"};
}

}  // namespace

version_table::version_table(const limits& limits) : limits_(limits) {
  // More than one call changes: a version, and the aliases of its name.
  constexpr std::size_t others = 16;
  changed_.reserve(std::size_t{limits.aliases_per_name} + others);
}

// ---- versions ----

std::uint64_t version_table::create(std::string_view base,
                                    std::uint64_t number,
                                    std::vector<std::string> parts,
                                    const retention& keep,
                                    std::uint32_t latest_slot,
                                    const version_origin& origin) {
  if (parts.empty()) {
    parts.emplace_back();
  }
  if (parts.size() > limits_.parts_per_version) {
    throw too_many(limits_.parts_per_version, "parts in a version", "put several into one part");
  }
  std::vector<std::string_view> sorted(parts.begin(), parts.end());
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    throw error(errc::invalid_argument, {}, {}, "two parts have the same name", "name each once");
  }
  const auto existing = names_.find(base);
  const std::uint64_t last = existing == names_.end() ? 0 : existing->second.last;
  if (number == 0 ? last == base::max_version_number : number <= last) {
    throw error(errc::invalid_argument,
                {},
                {},
                "the last version of this name has the number " + std::to_string(last),
                "give a higher number, or none");
  }
  if (existing != names_.end() && existing->second.versions.size() >= limits_.versions_per_name) {
    throw too_many(limits_.versions_per_name,
                   "versions of this name",
                   "keep fewer versions, or end those that are in use");
  }
  // All nodes first, which do not move when they are merged: nothing can fail from then on.
  std::map<std::string, name, std::less<>> new_names;
  name* owner = nullptr;
  if (existing != names_.end()) {
    owner = &existing->second;
  } else {
    owner = &new_names[std::string(base)];
    owner->base = base;
    owner->owner = origin.creator;
    owner->waiting.push_back(owner);
    make_alias(*owner, owner->aliases, latest_alias, latest_slot).word.generation = origin.id;
  }
  std::map<std::uint64_t, version> new_versions;
  version& made =
      make_version(*owner, new_versions, number == 0 ? last + 1 : number, std::move(parts), origin);
  alias& latest = owner->aliases.find(latest_alias)->second;
  by_slot_.emplace(latest.word.slot, &latest);  // no effect if the name exists
  try {
    by_id_.emplace(origin.id, &made);
  } catch (...) {
    if (existing == names_.end()) {
      by_slot_.erase(latest.word.slot);
    }
    throw;
  }
  names_.merge(new_names);
  owner->keep = keep;
  owner->last = made.number;
  owner->versions.merge(new_versions);
  note(latest);
  note(made);
  return owner->last;
}

version_table::version& version_table::make_version(name& owner,
                                                    std::map<std::uint64_t, version>& where,
                                                    std::uint64_t number,
                                                    std::vector<std::string> parts,
                                                    const version_origin& origin) {
  version& made = where[number];
  made.owner = &owner;
  made.number = number;
  made.origin = origin;
  made.waiting.push_back(&made);
  made.leaving.push_back(&made);
  made.incomplete = parts.size();
  made.parts.reserve(parts.size());
  for (std::string& each : parts) {
    made.parts.push_back({std::move(each)});
  }
  return made;
}

const peer* version_table::owner_of(std::string_view base) const noexcept {
  const auto owner = names_.find(base);
  return owner == names_.end() ? nullptr : &owner->second.owner;
}

version_table::alias& version_table::make_alias(name& owner,
                                                aliases& where,
                                                std::string_view text,
                                                std::uint32_t slot) {
  alias& made = where[std::string(text)];
  made.text = text;
  made.full = std::make_shared<const std::string>(owner.base + "@" + made.text);
  made.owner = &owner;
  made.word.slot = slot;
  made.waiting.push_back(&made);
  made.freed.push_back(slot);
  return made;
}

version_table::version& version_table::existing(std::string_view base, std::uint64_t number) {
  version* const known = find(names_, base, number);
  if (known == nullptr || known->state == state::ending) {
    throw no_such_version(number);
  }
  return *known;
}

std::optional<version_table::state> version_table::state_of(std::string_view base,
                                                            std::uint64_t number) const {
  const version* const known = find(names_, base, number);
  return known == nullptr ? std::nullopt : std::optional(known->state);
}

void version_table::withdraw(std::string_view base, std::uint64_t number, gpushm::generation next) {
  version& withdrawn = existing(base, number);
  withdrawn.withdrawn = true;
  note(withdrawn);
  follow_publications(*withdrawn.owner, next);
  look_later(*withdrawn.owner);
}

void version_table::end(std::string_view base, std::uint64_t number, gpushm::generation next) {
  version& ending = existing(base, number);
  for (const auto& [text, each] : ending.owner->aliases) {
    if (each.target == number && text != latest_alias) {
      throw error(errc::invalid_argument,
                  {},
                  {},
                  "the alias " + text + " refers to this version",
                  "move the alias, or remove it, before the version");
    }
  }
  begin_to_end(ending, next);
}

void version_table::fail(std::uint64_t id, gpushm::generation next) noexcept {
  const auto at = by_id_.find(id);
  if (at != by_id_.end() && at->second->state == state::building) {
    begin_to_end(*at->second, next);
  }
}

void version_table::fail_of(gpushm::generation generation, gpushm::generation next) noexcept {
  if (const place* const part = find_part(generation)) {
    fail(part->in->origin.id, next);
  }
}

void version_table::set_session(std::uint64_t id, session_id session) noexcept {
  if (const auto at = by_id_.find(id); at != by_id_.end()) {
    at->second->origin.session = session;
    note(*at->second);
  }
}

void version_table::begin_to_end(version& ending, gpushm::generation next) noexcept {
  if (ending.state == state::ending) {
    return;
  }
  ending.state = state::ending;
  note(ending);
  left_.remove(&ending);  // its holders hear that it is removed
  name& owner = *ending.owner;
  for (auto& [text, each] : owner.aliases) {
    if (each.target == ending.number && text != latest_alias) {
      refer(each, 0, next);
    }
  }
  follow_publications(owner, next);
  ending_.splice(ending_.end(), ending.waiting);
  erase_if_empty(ending);
}

// ---- segments ----

void version_table::reserve(std::string_view base,
                            std::uint64_t number,
                            std::string_view part_name,
                            gpushm::generation generation,
                            std::uint64_t bytes) {
  version& in = existing(base, number);
  place made{&in, place::none, bytes, false};
  const auto at = std::find_if(
      in.parts.begin(), in.parts.end(), [&](const part& each) { return each.name == part_name; });
  if (at != in.parts.end()) {
    if (at->generation != 0) {
      throw error(errc::already_exists, {}, {}, "the part exists already", "create it once");
    }
    made.part = static_cast<std::size_t>(at - in.parts.begin());
  } else if (in.state == state::building) {
    throw error(errc::no_such_segment,
                {},
                {},
                "the version has no part of this name",
                "name all parts when the version is created; anything else can be created under "
                "its name once it is published");
  }
  const auto inserted = in.segments.insert(generation).first;
  try {
    segments_.emplace(generation, made);
  } catch (...) {
    in.segments.erase(inserted);
    throw;
  }
  in.bytes += bytes;
  if (made.part != place::none) {
    at->generation = generation;
  }
}

void version_table::unreserve(gpushm::generation generation) noexcept {
  const auto at = segments_.find(generation);
  if (at == segments_.end()) {
    return;
  }
  const place undone = at->second;
  segments_.erase(at);
  undone.in->segments.erase(generation);
  undone.in->bytes -= undone.bytes;
  if (undone.part != place::none) {
    undone.in->parts[undone.part].generation = 0;
  }
}

const version_table::place* version_table::find_part(gpushm::generation generation) const noexcept {
  const auto at = segments_.find(generation);
  return at == segments_.end() || at->second.part == place::none ? nullptr : &at->second;
}

bool version_table::is_part(gpushm::generation generation) const noexcept {
  return find_part(generation) != nullptr;
}

bool version_table::is_part_being_built(gpushm::generation generation) const noexcept {
  const place* const part = find_part(generation);
  return part != nullptr && part->in->state == state::building;
}

bool version_table::is_last_part(gpushm::generation generation) const noexcept {
  const place* const part = find_part(generation);
  return part != nullptr && part->in->state == state::building && part->in->incomplete == 1 &&
         !part->in->parts[part->part].complete;
}

bool version_table::is_visible(gpushm::generation generation) const noexcept {
  const auto at = segments_.find(generation);
  return at == segments_.end() || at->second.in->state == state::published;
}

bool version_table::complete(gpushm::generation generation, gpushm::generation next) noexcept {
  const place* const at = find_part(generation);
  if (at == nullptr) {
    return false;
  }
  version& in = *at->in;
  part& completed = in.parts[at->part];
  if (in.state != state::building || completed.complete) {
    return false;
  }
  completed.complete = true;
  if (--in.incomplete != 0) {
    return false;
  }
  in.state = state::published;
  in.origin.session = 0;
  note(in);
  follow_publications(*in.owner, next);
  look_later(*in.owner);
  return true;
}

void version_table::hold(gpushm::generation generation) noexcept {
  const auto at = segments_.find(generation);
  if (at != segments_.end() && !std::exchange(at->second.is_held, true)) {
    ++at->second.in->held;
  }
}

void version_table::release(gpushm::generation generation) noexcept {
  const auto at = segments_.find(generation);
  if (at != segments_.end() && std::exchange(at->second.is_held, false)) {
    version& in = *at->second.in;
    if (--in.held == 0) {
      look_later(*in.owner);
    }
  }
}

void version_table::forget(gpushm::generation generation, gpushm::generation next) noexcept {
  const auto at = segments_.find(generation);
  if (at == segments_.end()) {
    return;
  }
  const place gone = at->second;
  segments_.erase(at);
  version& in = *gone.in;
  in.segments.erase(generation);
  in.bytes -= gone.bytes;
  if (gone.is_held && --in.held == 0) {
    look_later(*in.owner);
  }
  if (gone.part != place::none) {
    in.parts[gone.part].generation = 0;
    if (in.state != state::ending) {
      begin_to_end(in, next);
      return;
    }
  }
  erase_if_empty(in);
}

// ---- aliases ----

const version_table::alias* version_table::find_alias(std::string_view base,
                                                      std::string_view text) const noexcept {
  const auto owner = names_.find(base);
  if (owner == names_.end()) {
    return nullptr;
  }
  const auto at = owner->second.aliases.find(text);
  return at == owner->second.aliases.end() ? nullptr : &at->second;
}

std::uint64_t version_table::target_of(std::string_view base, std::string_view text) const {
  const alias* const known = find_alias(base, text);
  return known == nullptr ? 0 : known->target;
}

std::optional<alias_word> version_table::word_of(std::string_view base,
                                                 std::string_view text) const {
  const alias* const known = find_alias(base, text);
  return known == nullptr ? std::nullopt : std::optional(known->word);
}

void version_table::move(std::string_view base,
                         std::string_view text,
                         std::uint64_t number,
                         std::uint32_t slot,
                         gpushm::generation next) {
  if (text == latest_alias) {
    throw latest_follows();
  }
  version& target = existing(base, number);
  if (target.state != state::published) {
    throw error(errc::invalid_argument,
                {},
                {},
                "version " + std::to_string(number) + " is not published yet",
                "move the alias after its last part is published");
  }
  name& owner = *target.owner;
  const auto at = owner.aliases.find(text);
  if (at != owner.aliases.end()) {
    refer(at->second, number, next);
  } else {
    if (owner.aliases.size() >= limits_.aliases_per_name) {
      throw too_many(limits_.aliases_per_name, "aliases of this name", "remove one of them");
    }
    aliases made;
    alias& fresh = make_alias(owner, made, text, slot);
    by_slot_.emplace(slot, &fresh);
    owner.aliases.merge(made);
    note(fresh);
    refer(fresh, number, next);
  }
  look_later(owner);
}

void version_table::remove_alias(std::string_view base, std::string_view text) {
  if (text == latest_alias) {
    throw latest_follows();
  }
  const auto owner = names_.find(base);
  const auto at = owner == names_.end() ? decltype(owner->second.aliases.begin()){}
                                        : owner->second.aliases.find(text);
  if (owner == names_.end() || at == owner->second.aliases.end()) {
    throw error(errc::no_such_segment,
                {},
                {},
                "there is no alias of this name",
                "choose one of those that exist, or move it first");
  }
  erase(at->second);
  look_later(owner->second);
}

void version_table::erase(alias& gone) noexcept {
  note(gone);
  by_slot_.erase(gone.word.slot);
  moved_.remove(&gone);
  free_slots_.splice(free_slots_.end(), gone.freed);
  name& owner = *gone.owner;
  owner.aliases.erase(owner.aliases.find(gone.text));
}

void version_table::refer(alias& moved, std::uint64_t number, gpushm::generation next) noexcept {
  if (moved.target == number) {
    return;
  }
  name& owner = *moved.owner;
  const auto before = owner.versions.find(moved.target);
  moved_.splice(moved_.end(), moved.waiting);  // no effect if it is there
  moved.target = number;
  moved.word.generation = next;
  note(moved);
  if (before != owner.versions.end() && before->second.state == state::published &&
      !is_referred_to(owner, before->first)) {
    before->second.skipped = 0;
    left_.splice(left_.end(), before->second.leaving);
  }
}

void version_table::follow_publications(name& owner, gpushm::generation next) noexcept {
  std::uint64_t highest = 0;
  for (auto each = owner.versions.rbegin(); each != owner.versions.rend() && highest == 0; ++each) {
    if (each->second.state == state::published && !each->second.withdrawn) {
      highest = each->first;
    }
  }
  refer(owner.aliases.find(latest_alias)->second, highest, next);
}

// ---- what follows ----

std::optional<alias_move> version_table::take_move() noexcept {
  if (moved_.empty()) {
    return std::nullopt;
  }
  alias& moved = *moved_.front();
  moved.waiting.splice(moved.waiting.end(), moved_, moved_.begin());
  return alias_move{moved.full, moved.word, moved.target};
}

gpushm::generation version_table::left_by_alias() noexcept {
  while (!left_.empty()) {
    version& first = *left_.front();
    const auto next = first.segments.upper_bound(first.skipped);
    if (next != first.segments.end() && !is_referred_to(*first.owner, first.number)) {
      return *next;
    }
    first.leaving.splice(first.leaving.end(), left_, left_.begin());
  }
  return 0;
}

void version_table::skip_left() noexcept {
  version& first = *left_.front();
  first.skipped = *first.segments.upper_bound(first.skipped);
}

gpushm::generation version_table::next_to_withdraw() const noexcept {
  for (const version* each : ending_) {
    if (!each->segments.empty()) {
      return *each->segments.begin();
    }
  }
  return 0;
}

bool version_table::is_referred_to(const name& owner, std::uint64_t number) noexcept {
  return std::any_of(owner.aliases.begin(), owner.aliases.end(), [&](const auto& each) {
    return each.second.target == number;
  });
}

bool version_table::end_unused() noexcept {
  if (to_look_at_.empty()) {
    return false;
  }
  name& owner = *to_look_at_.front();
  std::uint32_t kept = 0;
  std::uint64_t kept_bytes = 0;
  for (auto each = owner.versions.rbegin(); each != owner.versions.rend(); ++each) {
    version& looked_at = each->second;
    if (looked_at.state != state::published || looked_at.held != 0 ||
        is_referred_to(owner, each->first)) {
      continue;
    }
    if (!looked_at.withdrawn && kept < owner.keep.versions &&
        (owner.keep.bytes == 0 || looked_at.bytes <= owner.keep.bytes - kept_bytes)) {
      ++kept;
      kept_bytes += looked_at.bytes;
      continue;
    }
    begin_to_end(looked_at, 0);  // no alias refers to it
    return true;
  }
  owner.waiting.splice(owner.waiting.end(), to_look_at_, to_look_at_.begin());
  return !to_look_at_.empty();
}

void version_table::look_later(name& owner) noexcept {
  if (!owner.waiting.empty()) {
    to_look_at_.splice(to_look_at_.end(), owner.waiting);
  }
}

std::optional<std::uint32_t> version_table::take_free_slot() noexcept {
  if (free_slots_.empty()) {
    return std::nullopt;
  }
  const std::uint32_t slot = free_slots_.front();
  free_slots_.pop_front();
  return slot;
}

void version_table::erase_if_empty(version& ended) noexcept {
  if (ended.state != state::ending || !ended.segments.empty()) {
    return;
  }
  name& owner = *ended.owner;
  note(ended);
  by_id_.erase(ended.origin.id);
  left_.remove(&ended);
  ending_.remove(&ended);
  owner.versions.erase(owner.versions.find(ended.number));
  if (!owner.versions.empty()) {
    return;
  }
  to_look_at_.remove(&owner);
  while (!owner.aliases.empty()) {
    erase(owner.aliases.begin()->second);
  }
  names_.erase(names_.find(owner.base));
}

// ---- as values ----

void version_table::note(changed changed) noexcept {
  if (taken_ != 0) {
    changed_.clear();
    taken_ = 0;
  }
  if (changed_.size() == changed_.capacity()) {
    is_too_much_changed_ = true;
    return;
  }
  changed_.push_back(changed);
}

std::optional<std::span<const version_table::changed>> version_table::take_changes() noexcept {
  if (std::exchange(is_too_much_changed_, false)) {
    changed_.clear();
    taken_ = 0;
    return std::nullopt;
  }
  const std::span<const changed> fresh = std::span<const changed>(changed_).subspan(taken_);
  taken_ = changed_.size();
  return fresh;
}

std::optional<saved_version> version_table::saved_version_of(std::uint64_t id) const {
  const auto at = by_id_.find(id);
  if (at == by_id_.end()) {
    return std::nullopt;
  }
  const version& of = *at->second;
  saved_version saved{
      of.owner->base, of.number, of.state, of.withdrawn, {}, of.origin.creator, of.origin.session};
  for (const part& each : of.parts) {
    saved.parts.push_back(each.name);
  }
  return saved;
}

std::optional<saved_alias> version_table::saved_alias_of(std::uint32_t slot) const {
  const auto at = by_slot_.find(slot);
  if (at == by_slot_.end()) {
    return std::nullopt;
  }
  const alias& of = *at->second;
  saved_alias saved{of.owner->base, of.text, of.word.generation, of.target};
  if (of.text == latest_alias) {
    saved.last = of.owner->last;
    saved.keep = of.owner->keep;
    saved.owner = of.owner->owner;
  }
  return saved;
}

void version_table::restore(std::uint64_t id, const saved_version& saved) {
  require(saved.number != 0 && !saved.parts.empty(), "a version has no number or no parts");
  name& owner = names_[saved.base];
  if (owner.base.empty()) {
    owner.base = saved.base;
    owner.waiting.push_back(&owner);
    look_later(owner);
  }
  require(!owner.versions.contains(saved.number), "two versions have one number");
  version& made = make_version(
      owner, owner.versions, saved.number, saved.parts, {id, saved.creator, saved.session});
  made.state = saved.state;
  made.withdrawn = saved.withdrawn;
  if (saved.state == state::ending) {
    ending_.splice(ending_.end(), made.waiting);
  }
  require(by_id_.emplace(id, &made).second, "two versions have one record");
}

void version_table::restore(std::uint32_t slot, const saved_alias& saved) {
  const auto owner = names_.find(saved.base);
  require(owner != names_.end() && !owner->second.aliases.contains(saved.alias),
          "an alias belongs to no name, or exists twice");
  alias& made = make_alias(owner->second, owner->second.aliases, saved.alias, slot);
  made.word.generation = saved.generation;
  made.target = saved.number;
  if (saved.number != 0) {
    const auto target = owner->second.versions.find(saved.number);
    require(target != owner->second.versions.end() && target->second.state == state::published,
            "an alias refers to no published version");
  }
  if (saved.alias == latest_alias) {
    owner->second.last = saved.last;
    owner->second.keep = saved.keep;
    owner->second.owner = saved.owner;
  }
  require(by_slot_.emplace(slot, &made).second, "two aliases have one slot");
}

void version_table::finish_restoring() noexcept {
  for (auto& [base, owner] : names_) {
    for (auto& [number, each] : owner.versions) {
      if (each.state == state::published && !is_referred_to(owner, number)) {
        left_.splice(left_.end(), each.leaving);
      }
    }
  }
}

void version_table::restore_segment(std::string_view base,
                                    std::uint64_t number,
                                    std::string_view part_name,
                                    gpushm::generation generation,
                                    std::uint64_t bytes,
                                    bool is_complete) {
  version* const known = find(names_, base, number);
  if (known == nullptr) {
    throw inconsistent("a segment belongs to no version");
  }
  version& in = *known;
  require(in.owner->aliases.contains(latest_alias), "a name has no alias latest");
  place made{&in, place::none, bytes, false};
  const auto at = std::find_if(
      in.parts.begin(), in.parts.end(), [&](const part& each) { return each.name == part_name; });
  if (at != in.parts.end()) {
    require(at->generation == 0, "two segments are one part");
    made.part = static_cast<std::size_t>(at - in.parts.begin());
    at->generation = generation;
    at->complete = is_complete;
    in.incomplete -= is_complete ? 1 : 0;
  }
  in.segments.insert(generation);
  segments_.emplace(generation, made);
  in.bytes += bytes;
}

}  // namespace gpushm::core
