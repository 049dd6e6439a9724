// SPDX-License-Identifier: Apache-2.0
#include "client/lease/lease_table.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <functional>
#include <limits>

#include "base/report/log.hpp"
#include "base/segments/exporter_bound.hpp"
#include "base/segments/versioned_names.hpp"
#include "base/text/size_text.hpp"

namespace gpushm::client_detail {

namespace {

/// Measured cost: a peer mapping of at least this size makes all later ones cheap; a smaller one
/// only smaller ones.
constexpr std::uint64_t large_peer_bytes = 512ULL << 20U;

/// Valid for another user: the name still refers to this memory.
bool is_current(const segment_lease& lease) {
  const segment_state state = lease.state_in_table();
  return state == segment_state::live ||
         (state == segment_state::exporter_gone && !base::ends_with_creator(lease.info().backend));
}
/// For results without the broker: read before the state, so that one that a successor has changed
/// is not used.
bool has_current_state(const segment_lease& lease) {
  return lease.broker_in_table().has_current_states();
}
/// A segment's own name is judged by the segment's word alone. That of an alias also has to have
/// not moved.
bool is_current(const open_target& target) {
  const segment_lease* const lease = target.to->lease();
  return lease != nullptr && is_current(*lease) &&
         (!target.alias || lease->still_shows(*target.alias));
}

const char* environment(const char* variable) {
  const char* const value =
      std::getenv(variable);  // NOLINT(concurrency-mt-unsafe): read where clients connect
  return value == nullptr || *value == '\0' ? nullptr : value;
}

std::uint64_t limit_from(const char* variable,
                         std::optional<std::uint64_t> given,
                         std::uint64_t otherwise) {
  if (given) {
    return *given;
  }
  const char* const text = environment(variable);
  if (text == nullptr) {
    return otherwise;
  }
  if (std::string_view(text) == "unlimited") {
    return std::numeric_limits<std::uint64_t>::max();
  }
  if (const auto size = base::parse_size(text)) {
    return *size;
  }
  throw error(errc::invalid_argument,
              "connect",
              variable,
              std::string(text) + " is neither a number nor \"unlimited\"",
              "set it to a number of bytes, to a size such as 16GiB, or to unlimited; or unset it");
}

}  // namespace

cache_bounds bounds_from(const cache_options& options) {
  return {limit_from("GPUSHM_CACHE_MAX_BYTES", options.max_bytes, default_cache_bytes),
          limit_from("GPUSHM_CACHE_MAX_ENTRIES", options.max_entries, default_cache_entries)};
}

lease_table::key_view::key_view(std::string_view for_name,
                                std::string_view for_device,
                                gpushm::access for_access) noexcept
    : name(for_name), device(for_device), access(for_access) {
  const std::hash<std::string_view> of_text;
  constexpr std::size_t multiplier = 0x9E3779B97F4A7C15ULL;  // 2^64 over the golden ratio
  hash = of_text(name) * multiplier + static_cast<std::size_t>(access);
  if (!device.empty()) {
    hash = hash * multiplier + of_text(device);
  }
}

// ---- leases ----

std::shared_ptr<segment_lease> lease_table::take(const std::shared_ptr<connection>& broker,
                                                 segment_lease::facts facts,
                                                 grant& granted,
                                                 std::string_view operation) {
  std::shared_ptr<segment_lease> lease;  // destroyed after the lock is released
  const std::pair key{static_cast<const connection*>(broker.get()), facts.segment.generation};
  const std::lock_guard lock(mutex_);
  if (broker->handed_over()) {
    throw error(errc::broker_gone,
                operation,
                facts.segment.name,
                "the broker has ended the connection that requested it",
                "try again: this process has reconnected");
  }
  if (const auto at = leases_.find(key); at != leases_.end()) {
    lease = at->second.lock();
  }
  if (lease) {
    lease->add_grant();
    granted.keep();
    if (facts.segment.published) {
      lease->set_published(std::move(facts.metadata));
    }
  } else {
    auto& place = leases_[key];
    if (facts.receipt) {
      has_receipts_.store(true, std::memory_order_relaxed);
    }
    lease = std::make_shared<segment_lease>(weak_from_this(), broker, std::move(facts));
    granted.keep();
    place = lease;
  }
  return lease;
}

void lease_table::hand_over(connection& source,
                            const std::shared_ptr<connection>& connection,
                            steady_time deadline) {
  std::vector<std::shared_ptr<segment_lease>> kept;  // until the broker has the list
  std::list<segment_lease::place> former;            // destroyed after the lock is released
  {
    const std::lock_guard lock(mutex_);
    source.hand_over();
    for (auto at = leases_.lower_bound({&source, 0});
         at != leases_.end() && at->first.first == &source;) {
      if (auto lease = at->second.lock()) {
        former.splice(former.end(), lease->move_to(connection));
        leases_[{connection.get(), at->first.second}] = lease;
        kept.push_back(std::move(lease));
      }
      at = leases_.erase(at);
    }
  }
  std::vector<std::pair<gpushm::generation, std::uint32_t>> counts;
  counts.reserve(kept.size());
  for (const auto& lease : kept) {
    counts.emplace_back(lease->generation(), lease->grants());
  }
  connection->keep(counts, deadline);
}

std::vector<std::shared_ptr<segment_lease>> lease_table::lost() const {
  std::vector<std::shared_ptr<segment_lease>> lost;
  std::vector<std::shared_ptr<segment_lease>> others;  // may end after the lock is released
  const std::lock_guard lock(mutex_);
  for (const auto& [key, each] : leases_) {
    if (auto lease = each.lock()) {
      (lease->is_lost() ? lost : others).push_back(std::move(lease));
    }
  }
  return lost;
}

void lease_table::end_takes(connection& connection) {
  const std::lock_guard lock(mutex_);
  connection.hand_over();
}

/// A reply of `target` may have created another lease of the same generation meanwhile: the broker
/// counts the grants of both.
void lease_table::renew(const std::shared_ptr<segment_lease>& lease,
                        const std::shared_ptr<connection>& target,
                        const segment_lease::renewal& renewal) {
  const gpushm::generation generation = lease->generation();
  std::list<segment_lease::place> former;  // destroyed after the lock is released
  const std::lock_guard lock(mutex_);
  auto& place = leases_[{target.get(), generation}];
  if (place.expired()) {
    place = lease;
  }
  const connection* const from = &lease->broker_in_table();
  former = lease->renew(target, renewal);
  leases_.erase({from, generation});
}

void lease_table::set_aside(const std::shared_ptr<segment_lease>& lease) noexcept {
  {
    const std::lock_guard lock(mutex_);
    leases_.erase({&lease->broker_in_table(), lease->generation()});
  }
  lease->set_aside();
}

void lease_table::restart(const std::shared_ptr<segment_lease>& lease,
                          const std::shared_ptr<connection>& target,
                          const segment_lease::renewal& renewal) {
  std::list<segment_lease::place> former;  // destroyed after the lock is released
  const std::lock_guard lock(mutex_);
  if (target->handed_over()) {
    throw error(errc::broker_gone,
                "resume",
                lease->info().name,
                "the broker has ended the connection that requested it",
                "try again: this process has reconnected");
  }
  leases_[{target.get(), renewal.generation}] = lease;
  former = lease->renew(target, renewal);
}

void lease_table::forget_lease(const segment_lease& gone) noexcept {
  const std::lock_guard lock(mutex_);
  const auto at = leases_.find({&gone.broker_in_table(), gone.generation()});
  if (at != leases_.end() && at->second.expired()) {
    leases_.erase(at);
  }
}

// ---- prefetched segments ----

bool lease_table::should_prefetch(const connection& broker,
                                  gpushm::generation generation,
                                  std::size_t chunks) const {
  const std::lock_guard lock(mutex_);
  if (bounds_.max_entries == 0 || prefetched_.size() >= max_prefetched ||
      !prefetched_files_.has_room(chunks)) {
    return false;
  }
  const auto at = leases_.find({&broker, generation});
  return at == leases_.end() || at->second.expired();
}

bool lease_table::put(prefetched fetched) {
  std::string name = fetched.lease->info().name;
  prefetched former;  // both are destroyed after the lock is released
  const std::lock_guard lock(mutex_);
  if (bounds_.max_entries == 0) {
    return false;
  }
  fetched.held = prefetched_files_.try_hold(fetched.files.size());
  const auto at = prefetched_.find(name);
  if (!fetched.held || (at == prefetched_.end() && prefetched_.size() >= max_prefetched)) {
    return false;
  }
  // Checked now, because the end of its segment is reported to this table from here on.
  if (!is_current(*fetched.lease)) {
    return false;
  }
  if (at == prefetched_.end()) {
    prefetched_.emplace(std::move(name), std::move(fetched));
  } else {
    former = std::exchange(at->second, std::move(fetched));
  }
  return true;
}

std::optional<lease_table::prefetched> lease_table::take_prefetched(
    std::string_view name, std::uint64_t expected_size_bytes, gpushm::generation generation) {
  prefetched lost;  // destroyed after the lock is released
  const std::lock_guard lock(mutex_);
  const auto at = prefetched_.find(name);
  if (at == prefetched_.end()) {
    return std::nullopt;
  }
  const wire::segment& info = at->second.lease->info();
  if ((expected_size_bytes != 0 && expected_size_bytes != info.size_bytes) ||
      (generation != 0 && generation != info.generation)) {
    return std::nullopt;  // the broker reports the mismatch
  }
  const bool is_known = has_current_state(*at->second.lease);
  if (!is_known && is_current(*at->second.lease)) {
    return std::nullopt;  // ask the next broker
  }
  auto node = prefetched_.extract(at);
  if (!is_current(*node.mapped().lease)) {
    lost = std::move(node.mapped());
    return std::nullopt;
  }
  node.mapped().held = {};
  prefetched taken = std::move(node.mapped());
  return taken;
}

std::size_t lease_table::prefetched_count() const {
  const std::lock_guard lock(mutex_);
  return prefetched_.size();
}

// ---- users ----

std::shared_ptr<mapping> lease_table::find(std::string_view name,
                                           std::string_view device,
                                           gpushm::access access,
                                           std::uint64_t expected_size_bytes) {
  const key_view key(name, device, access);
  ended out;
  const std::lock_guard lock(mutex_);
  const auto at = by_key_.find(key);
  if (at == by_key_.end()) {
    ++stats_.misses;
    return nullptr;
  }
  mapping& kept = *at->second.to;
  const bool is_known = kept.lease() != nullptr && has_current_state(*kept.lease());
  if (!is_current(at->second)) {
    ++stats_.misses;
    forget_name(*at, out);
    return nullptr;
  }
  if (!is_known || (expected_size_bytes != 0 && expected_size_bytes != kept.info().size_bytes)) {
    ++stats_.misses;  // ask the broker, or the next one, which reports the mismatch
    return nullptr;
  }
  count_user(kept);
  ++stats_.hits;
  kept.lease()->broker_in_table().opened_from_cache();
  return {std::shared_ptr<mapping>(), &kept};
}

void lease_table::use(const std::shared_ptr<mapping>& mapping) {
  const std::lock_guard lock(mutex_);
  add_user(mapping);
}

std::size_t lease_table::users(const mapping& mapping) const {
  const std::lock_guard lock(mutex_);
  return mapping.notes_.users;
}

void lease_table::end_unused(const segment_lease& lease) noexcept {
  ended out;
  const std::lock_guard lock(mutex_);
  for (auto at = unused_.begin(); at != unused_.end();) {
    mapping& each = **at++;  // `forget` removes it
    if (each.lease() == &lease) {
      forget(each, out);
    }
  }
}

void lease_table::add_user(const std::shared_ptr<mapping>& mapping) {
  mapping::notes& notes = mapping->notes_;
  const bool is_known = notes.unused || !notes.owner.empty();
  ended owner(is_known ? 0 : 1, mapping);
  if (mapping->is_on_peer() && !notes.group) {
    notes.group = groups_
                      .try_emplace({mapping->info().device.text(),
                                    mapping->info().allocated_bytes >= large_peer_bytes})
                      .first;
    ++(*notes.group)->second;
  }
  if (!is_known) {
    notes.owner.swap(owner);
    notes.place = notes.owner.begin();
  }
  count_user(*mapping);
}

void lease_table::count_user(mapping& mapping) noexcept {
  if (mapping.notes_.unused) {
    leave_unused(mapping);
  }
  if (mapping.notes_.users++ == 0) {
    ++stats_.used_entries;
    stats_.used_bytes += mapping.info().allocated_bytes;
  }
}

void lease_table::keep(const std::shared_ptr<mapping>& mapping,
                       std::string_view device,
                       const std::optional<alias>& alias) {
  ended out;
  const std::lock_guard lock(mutex_);
  set_name(*mapping, device, alias, out);
  try {
    add_user(mapping);
  } catch (...) {
    forget(*mapping, out);
    throw;
  }
}

void lease_table::set_name(mapping& mapping,
                           std::string_view device,
                           const std::optional<alias>& alias,
                           ended& out) {
  const key_view key(alias ? alias->name : mapping.info().name, device, mapping.access());
  open_target target{&mapping};
  if (alias && mapping.lease() != nullptr) {
    target.alias = mapping.lease()->see(alias->word);
  }
  std::vector<const known_open*>& names = mapping.notes_.names;
  names.reserve(names.size() + 1);
  const auto at = by_key_.find(key);
  if (at != by_key_.end() && at->second.to == &mapping) {
    at->second = target;
    return;
  }
  open_key owned{key.hash, std::string(key.name), std::string(device), key.access};
  if (at != by_key_.end()) {
    forget_name(*at, out);
  }
  names.push_back(&*by_key_.emplace(std::move(owned), target).first);
}

std::optional<segment_lease::name_word> lease_table::word_of(const mapping& mapping,
                                                             std::string_view name,
                                                             std::string_view device) const {
  const key_view key(name, device, mapping.access());
  const std::lock_guard lock(mutex_);
  const auto at = by_key_.find(key);
  return at == by_key_.end() || at->second.to != &mapping || !at->second.alias
             ? std::nullopt
             : std::optional<segment_lease::name_word>(at->second.alias->word);
}

void lease_table::add_name(mapping& mapping, std::string_view device, const alias& alias) {
  ended out;
  const std::lock_guard lock(mutex_);
  set_name(mapping, device, alias, out);
}

bool lease_table::is_named(const mapping& mapping) {
  const auto& names = mapping.notes_.names;
  return std::any_of(names.begin(), names.end(), [](const known_open* each) {
    return (each->second.alias || !base::is_versioned_name(each->first.name)) &&
           is_current(each->second);
  });
}

bool lease_table::is_worth_keeping(const mapping& mapping) {
  return mapping.info().lifetime == lifetime::persistent && mapping.lease() != nullptr &&
         mapping.lease()->published() && is_named(mapping) && !mapping.region().suspended();
}

void lease_table::release(std::shared_ptr<mapping> mapping) noexcept {
  ended out;
  const std::lock_guard lock(mutex_);
  mapping::notes& notes = mapping->notes_;
  if (--notes.users != 0) {
    return;
  }
  --stats_.used_entries;
  stats_.used_bytes -= mapping->info().allocated_bytes;
  const bool worth_keeping = is_worth_keeping(*mapping);
  const bool fits = mapping->info().allocated_bytes <= bounds_.max_bytes;
  stats_.evictions += worth_keeping && !fits ? 1 : 0;
  if (worth_keeping && fits) {  // otherwise it would evict all others
    unused_.splice(unused_.end(), notes.owner);
    notes.unused = true;
    ++stats_.kept_entries;
    stats_.kept_bytes += mapping->info().allocated_bytes;
    evict(out);
  } else {
    forget(*mapping, out);
  }
}

// ---- ending mappings ----

void lease_table::leave_unused(mapping& mapping) noexcept {
  mapping.notes_.unused = false;
  --stats_.kept_entries;
  stats_.kept_bytes -= mapping.info().allocated_bytes;
  mapping.notes_.owner.splice(mapping.notes_.owner.end(), unused_, mapping.notes_.place);
}

/// Removes it from every index.
void lease_table::forget(mapping& mapping, ended& out) noexcept {
  mapping::notes& notes = mapping.notes_;
  if (notes.unused) {
    leave_unused(mapping);
  }
  out.splice(out.end(), notes.owner);
  for (const known_open* const each : notes.names) {
    by_key_.erase(by_key_.find(each->first));
  }
  notes.names.clear();
  if (notes.group) {
    if (--(*notes.group)->second == 0) {
      groups_.erase(*notes.group);
    }
    notes.group.reset();
  }
}

/// Removes a name, and its mapping if that is unused and no other name refers to it.
void lease_table::forget_name(const known_open& name, ended& out) noexcept {
  mapping& mapping = *name.second.to;
  std::erase(mapping.notes_.names, &name);
  by_key_.erase(by_key_.find(name.first));
  if (mapping.notes_.unused && !is_named(mapping)) {
    forget(mapping, out);
  }
}

bool lease_table::is_last_of_group(const mapping& mapping) noexcept {
  return mapping.notes_.group && (*mapping.notes_.group)->second == 1;
}

void lease_table::evict(ended& out) noexcept {
  while (!unused_.empty() &&
         (stats_.kept_bytes > bounds_.max_bytes || stats_.kept_entries > bounds_.max_entries)) {
    auto victim = unused_.begin();
    while (victim != unused_.end() && is_last_of_group(**victim)) {
      ++victim;
    }
    ++stats_.evictions;
    forget(victim == unused_.end() ? *unused_.front() : **victim, out);
  }
}

void lease_table::trim() noexcept {
  ended out;
  prefetched_by_name dropped;
  const std::lock_guard lock(mutex_);
  prefetched_.swap(dropped);
  while (!unused_.empty()) {
    forget(*unused_.front(), out);
  }
}

void lease_table::close() noexcept {
  {
    const std::lock_guard lock(mutex_);
    bounds_ = {0, 0};
  }
  trim();
}

bool lease_table::end_lost(gpushm::generation generation) noexcept {
  ended out;
  prefetched_by_name::node_type lost;  // destroyed after the lock is released
  const std::lock_guard lock(mutex_);
  for (auto at = prefetched_.begin(); at != prefetched_.end(); ++at) {
    const segment_lease& lease = *at->second.lease;
    if ((generation == 0 || lease.generation() == generation) && !is_current(lease)) {
      lost = prefetched_.extract(at);
      return true;
    }
  }
  for (const std::shared_ptr<mapping>& each : unused_) {
    const bool matches = generation == 0 || each->generation() == generation;
    if (matches && !is_named(*each)) {
      forget(*each, out);
      return true;
    }
  }
  return false;
}

gpushm::cache_stats lease_table::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace gpushm::client_detail
