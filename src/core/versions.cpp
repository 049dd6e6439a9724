// SPDX-License-Identifier: Apache-2.0
#include "core/versions.hpp"

#include <algorithm>
#include <cassert>
#include <utility>

#include "base/segments/versioned_names.hpp"
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

// ---- versions ----

std::uint64_t version_table::create(std::string_view base,
                                    std::uint64_t number,
                                    std::vector<std::string> parts,
                                    const retention& keep,
                                    std::uint32_t latest_slot) {
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
    owner->waiting.push_back(owner);
    make_alias(*owner, owner->aliases, latest_alias, latest_slot);
  }
  std::map<std::uint64_t, version> new_versions;
  version& made = new_versions[number == 0 ? last + 1 : number];
  made.owner = owner;
  made.number = new_versions.begin()->first;
  made.waiting.push_back(&made);
  made.incomplete = parts.size();
  made.parts.reserve(parts.size());
  for (std::string& each : parts) {
    made.parts.push_back({std::move(each)});
  }
  names_.merge(new_names);
  owner->keep = keep;
  owner->last = made.number;
  owner->versions.merge(new_versions);
  return owner->last;
}

version_table::alias& version_table::make_alias(name& owner,
                                                aliases& where,
                                                std::string_view text,
                                                std::uint32_t slot) {
  alias& made = where[std::string(text)];
  made.text = text;
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

void version_table::fail(std::string_view base,
                         std::uint64_t number,
                         gpushm::generation next) noexcept {
  version* const building = find(names_, base, number);
  if (building != nullptr && building->state == state::building) {
    begin_to_end(*building, next);
  }
}

void version_table::begin_to_end(version& ending, gpushm::generation next) noexcept {
  if (ending.state == state::ending) {
    return;
  }
  ending.state = state::ending;
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

bool version_table::is_visible(gpushm::generation generation) const noexcept {
  const auto at = segments_.find(generation);
  return at == segments_.end() || at->second.in->state == state::published;
}

bool version_table::complete(gpushm::generation generation, gpushm::generation next) noexcept {
  const auto at = segments_.find(generation);
  if (at == segments_.end() || at->second.part == place::none) {
    return false;
  }
  version& in = *at->second.in;
  part& completed = in.parts[at->second.part];
  if (in.state != state::building || completed.complete) {
    return false;
  }
  completed.complete = true;
  if (--in.incomplete != 0) {
    return false;
  }
  in.state = state::published;
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
    owner.aliases.merge(made);
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
  moved_.remove(&gone);
  free_slots_.splice(free_slots_.end(), gone.freed);
  name& owner = *gone.owner;
  owner.aliases.erase(owner.aliases.find(gone.text));
}

void version_table::refer(alias& moved, std::uint64_t number, gpushm::generation next) noexcept {
  if (moved.target == number) {
    return;
  }
  if (!moved.waiting.empty()) {
    moved.left = moved.target;
    moved_.splice(moved_.end(), moved.waiting);
  }
  moved.target = number;
  moved.word.generation = next;
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

std::optional<alias_move> version_table::take_move() {
  if (moved_.empty()) {
    return std::nullopt;
  }
  alias& moved = *moved_.front();
  alias_move taken{moved.owner->base, moved.text, moved.word, moved.target, moved.left};
  moved.waiting.splice(moved.waiting.end(), moved_, moved_.begin());
  return taken;
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

}  // namespace gpushm::core
