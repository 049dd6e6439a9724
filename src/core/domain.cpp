// SPDX-License-Identifier: Apache-2.0
#include "core/domain.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "base/segments/exporter_bound.hpp"
#include "base/segments/names.hpp"
#include "base/segments/registered_names.hpp"

namespace gpushm::core {

namespace {

budget::amounts capacities(const limits& of) {
  budget::amounts result{};
  const auto set = [&](resource what, std::uint64_t amount) {
    result[static_cast<std::size_t>(what)] = amount;
  };
  set(resource::memory_bytes, of.max_memory_bytes);
  set(resource::descriptors, of.max_descriptors);
  set(resource::connections, of.max_connections);
  set(resource::segments, of.max_segments);
  set(resource::host_bytes, of.quota_bytes);
  set(resource::gpu_bytes, of.quota_bytes);
  set(resource::subscriptions, of.max_all_subscriptions);
  set(resource::waiting_opens, of.max_waiting_opens);
  return result;
}

/// Device descriptions come from clients and are printed on terminals.
bool is_plain_text(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char each) { return each > ' ' && each < 0x7f; });
}

/// Who to ask about a segment.
std::string party_of(const peer& creator) {
  const principal& of = creator.principal;
  const std::string uid = "uid " + std::to_string(creator.uid);
  return of.key.empty() || !of.vouched_for || of.key == uid ? uid : uid + " in " + of.key;
}

error stale(gpushm::generation generation) {
  return {errc::stale_generation,
          {},
          {},
          "generation " + std::to_string(generation) +
              " is gone, or does not belong to this connection",
          "open the segment again by name"};
}

constexpr std::size_t longest_ticket_bytes = 4096;

/// Capacity reserved for effects of each kind: those of one turn and of one segment.
constexpr std::size_t min_capacity = 1'024;
constexpr std::size_t max_changes_per_end = 4;
constexpr std::size_t record_capacity = 4'096;
/// Objects that the end of one lease changes.
constexpr std::size_t max_records_per_end = 16;

/// Names of registered descriptors are unique numbers, and no segment's. Nobody counts what they
/// refer to: it is the exporter's.
void check_registration(const reservation& wanted) {
  const bool is_registration = wanted.backend == backend::descriptor;
  if (base::is_registered_name(wanted.name) != is_registration) {
    throw error(errc::invalid_argument,
                {},
                {},
                "names that begin with \".fd/\" are those of registered descriptors",
                "choose another name; `gpushm_client_register_descriptor` registers a descriptor");
  }
  if (is_registration && (!base::registered_number(wanted.name) || wanted.allocated_bytes != 1)) {
    throw error(errc::invalid_argument,
                {},
                {},
                "this is not the number of a registered descriptor, or its size is not 1",
                "report this as a bug");
  }
}

void check_reservation(const reservation& wanted) {
  base::check_name({}, wanted.name);
  const auto invalid = [](std::string_view cause, std::string_view next_step) {
    throw error(errc::invalid_argument, {}, {}, cause, next_step);
  };
  if (wanted.size_bytes == 0) {
    invalid("the size is 0 bytes", "give a size of at least 1 byte");
  }
  if (wanted.allocated_bytes > largest_segment_bytes) {
    invalid("the segment is larger than an address space (256 TiB)", "create a smaller one");
  }
  if (wanted.allocated_bytes < wanted.size_bytes) {
    invalid("the allocation is smaller than the segment", "report this as a bug");
  }
  if (wanted.offset_bytes > wanted.allocated_bytes - wanted.size_bytes) {
    invalid("the segment extends past its allocation", "report this as a bug");
  }
  const auto fixed = base::fixed_chunks(wanted.backend);
  if (fixed ? wanted.chunk_count != *fixed : wanted.chunk_count == 0) {
    invalid(fixed ? "wrong number of chunks for this kind of memory" : "the segment has no chunks",
            "report this as a bug");
  }
  if (base::has_ticket(wanted.backend)
          ? wanted.ticket.empty() || wanted.ticket.size() > longest_ticket_bytes
          : !wanted.ticket.empty()) {
    invalid("the ticket is missing, too long, or not for this kind of memory",
            "report this as a bug");
  }
  check_registration(wanted);
  if ((base::ends_with_creator(wanted.backend) || wanted.backend == backend::signals ||
       wanted.backend == backend::descriptor) &&
      wanted.lifetime != lifetime::leased) {
    invalid("what is bound to its creator cannot be persistent",
            "share it as leased, or create a persistent segment and copy");
  }
  if (base::is_on_host(wanted.backend) != (wanted.device.kind == device_kind::host)) {
    invalid("backend and device do not match", "report this as a bug");
  }
  constexpr std::size_t longest_device_text = 128;
  if (wanted.device.uuid.size() > longest_device_text ||
      wanted.device.pci_address.size() > longest_device_text) {
    invalid("the device's description is too long", "report this as a bug");
  }
  if (!is_plain_text(wanted.device.uuid) || !is_plain_text(wanted.device.pci_address)) {
    invalid("the device's description has characters other than printable ASCII",
            "report this as a bug");
  }
}

}  // namespace

bool is_same_member(const peer& one, const peer& other) {
  if (!one.uid_known || !other.uid_known || one.uid != other.uid ||
      one.is_foreign != other.is_foreign) {
    return false;
  }
  const principal& of = one.principal;
  return of.key.empty() || !of.vouched_for || of == other.principal;
}

budget::amounts cost_of(const reservation& what) {
  // Of a timeline page the broker has a second descriptor, for writing. Its memory is allocated
  // by the member.
  const bool is_page = what.backend == backend::signals;
  budget::amounts result{};
  const auto set = [&](resource of, std::uint64_t amount) {
    result[static_cast<std::size_t>(of)] = amount;
  };
  set(resource::segments, 1);
  if (what.backend != backend::descriptor) {  // what it refers to is the exporter's
    set(base::is_on_host(what.backend) ? resource::host_bytes : resource::gpu_bytes,
        what.allocated_bytes);
  }
  set(resource::descriptors, std::uint64_t{what.chunk_count} + (is_page ? 1 : 0));
  set(resource::memory_bytes,
      cost::segment + cost::lease + what.name.size() + what.ticket.size() +
          cost::chunk * what.chunk_count);
  return result;
}

domain::domain(std::string name,
               std::uint32_t owner_uid,
               const limits& bounds,
               std::shared_ptr<process_budget> process)
    : name_(std::move(name)),
      owner_uid_(owner_uid),
      limits_(bounds),
      budget_(capacities(bounds), std::move(process), bounds.memory_copies),
      next_generation_(bounds.first_generation),
      slots_(bounds.max_segments) {
  core::quotas given = budget_.given_quotas();
  given.principal = {bounds.quota_bytes_per_principal, bounds.quota_bytes_per_principal};
  budget_.set_quotas(std::move(given));
  effects_.slots.reserve(min_capacity);
  effects_.waits.reserve(min_capacity);
  effects_.replies.reserve(min_capacity);
  effects_.questions.reserve(std::max<std::size_t>(min_capacity, bounds.max_confirmations));
  effects_.changes.reserve(min_capacity);
  make_room_to_record(0);
}

// ---- effects ----

void domain::note(record_kind kind, std::uint64_t first, std::uint64_t second) noexcept {
  if (!limits_.names_changes) {
    return;
  }
  if (effects_.records.size() == effects_.records.capacity()) {
    effects_.too_many_records = true;
    return;
  }
  effects_.records.push_back({kind, first, second});
}

/// Reserves capacity when something begins that will cause this many changes or replies when it
/// ends: ending must not allocate.
void domain::make_room(std::size_t changes, std::size_t replies) {
  effects_.changes.reserve(min_capacity + std::bit_ceil(changes));
  effects_.replies.reserve(min_capacity + std::bit_ceil(replies));
}

/// The same for objects that will change at once, in addition to those of a turn.
void domain::make_room_to_record(std::size_t objects) {
  if (limits_.names_changes) {
    effects_.records.reserve(record_capacity + (objects == 0 ? 0 : std::bit_ceil(objects)));
  }
}

/// A turn that has changed nothing yet always has: what ends must end.
bool domain::has_room_to_record(std::size_t objects) const noexcept {
  return !limits_.names_changes || effects_.records.empty() ||
         effects_.records.capacity() - effects_.records.size() >= objects;
}

/// The end of a lease causes at most a death, a release and a removal, and an event for each
/// holder.
bool domain::has_room_to_end(const segment& what) const {
  constexpr std::size_t max_words = 2;
  const auto of = confirming_by_generation_.find(what.generation);
  const std::size_t waiting = of == confirming_by_generation_.end() ? 0 : of->second.ids.size();
  const auto has = [](const auto& room, std::size_t more) {
    return room.capacity() - room.size() >= more;
  };
  return has(effects_.slots, max_words) && has(effects_.replies, waiting) &&
         has(effects_.changes, what.leases.size() + max_changes_per_end) &&
         has_room_to_record(max_records_per_end + waiting);
}

void domain::reply(session_id session, const open_request& request, const segment& found) noexcept {
  effects_.replies.push_back({session,
                              request.request,
                              request.index,
                              found.shared_from_this(),
                              std::nullopt,
                              request.waits});
}

void domain::refuse(session_id session,
                    const open_request& request,
                    std::optional<error> why) noexcept {
  effects_.replies.push_back(
      {session, request.request, request.index, nullptr, std::move(why), request.waits});
}

void domain::show(const segment& what) {
  note(record_kind::segment, what.generation);
  effects_.slots.push_back(slots_.set(what.slot, what.generation, what.state()));
}

// ---- permissions ----

bool domain::may_see(session_id session, const segment& what) const {
  return what.published || what.creator_session == session;
}

bool domain::is_operator(session_id session) const {
  const auto at = sessions_.find(session);
  return at != sessions_.end() && at->second.is_operator;
}

/// Different containers may use one uid: where a member's principal is known, it must be the same,
/// too.
bool domain::may_manage(session_id session, const segment& what) const {
  if (what.creator_session == session || is_operator(session)) {
    return true;
  }
  const auto at = sessions_.find(session);
  return at != sessions_.end() && is_same_member(what.creator, *at->second.who);
}

// ---- look-up ----

segment& domain::find(gpushm::generation generation) {
  const auto at = segments_.find(generation);
  if (at == segments_.end()) {
    throw stale(generation);
  }
  return *at->second;
}

const segment& domain::held(session_id session, gpushm::generation generation) const {
  const auto at = segments_.find(generation);
  if (at == segments_.end() ||
      std::none_of(at->second->leases.begin(), at->second->leases.end(), [&](const lease& held) {
        return held.holder == session;
      })) {
    throw stale(generation);
  }
  return *at->second;
}

segment* domain::of_name(const names& all, std::string_view name) {
  const auto at = all.find(name);
  return at == all.end() ? nullptr : at->second;
}

/// The published one, if there are two.
segment* domain::named(std::string_view name) const {
  segment* const published = of_name(published_, name);
  return published != nullptr ? published : of_name(reserved_, name);
}

/// The segment of this name, and of this generation unless that is 0.
segment& domain::visible(session_id session,
                         std::string_view name,
                         gpushm::generation generation) const {
  segment* found = named(name);
  if (segment* const reserved = of_name(reserved_, name);
      generation != 0 && reserved != nullptr && reserved->generation == generation) {
    found = reserved;
  }
  if (found == nullptr || !may_see(session, *found)) {
    found = of_name(published_, name);  // a generation does not show what else is hidden
  }
  if (found == nullptr) {
    throw no_such_segment(name);
  }
  if (generation != 0 && found->generation != generation) {
    throw another_generation(*found);
  }
  return *found;
}

const segment& domain::stat(session_id session,
                            std::string_view name,
                            gpushm::generation generation) const {
  base::check_name({}, name);
  return visible(session, name, generation);
}

error domain::exporter_died() const {
  return {errc::peer_died,
          {},
          {},
          "the process that shared this memory in domain " + name_ + " has died",
          "start it again"};
}

error domain::memory_lost() const {
  return {errc::gone_or_replaced,
          {},
          {},
          "the GPU that had this memory was lost, in domain " + name_,
          "create it again, on a GPU that works"};
}

error domain::no_such_segment(std::string_view name) const {
  if (const auto dead = dead_names_.find(name); dead != dead_names_.end()) {
    return dead_names_in_order_.at(dead->second).device_lost ? memory_lost() : exporter_died();
  }
  // Who forgets to publish looks for a wrong name, or for another broker.
  if (const segment* const found = named(name);
      found != nullptr && !found->published && found->creator_session != 0) {
    return {errc::no_such_segment,
            {},
            {},
            "it is being created by pid " + std::to_string(found->creator.pid) +
                ", which has not published it yet, in domain " + name_,
            "publish it there",
            {.pid = found->creator.pid}};
  }
  return {errc::no_such_segment,
          {},
          {},
          "no such segment in domain " + name_,
          "`gpushm ls` lists segments"};
}

error domain::another_generation(const segment& found) {
  return {errc::gone_or_replaced,
          {},
          {},
          "another segment has this name now: generation " + std::to_string(found.generation),
          "the generation that was meant has been removed; `gpushm ls` shows the one that has the "
          "name"};
}

error domain::may_not_manage(std::string_view action, const segment& what) {
  return {errc::permission_denied,
          {},
          {},
          "only its creator's connection, its uid in the same pod or container, or the broker's "
          "uid may " +
              std::string(action) + " a segment",
          what.creator.uid_known
              ? "ask " + party_of(what.creator) + " to " + std::string(action) + " it"
              : "have its creator or the broker's user " + std::string(action) + " it"};
}

// ---- creation ----

/// A segment that is handed back replaces none: the name is in use.
void domain::check_name_is_free(session_id session,
                                const reservation& wanted,
                                bool is_handed_back) const {
  const segment* const reserved = of_name(reserved_, wanted.name);
  const segment* const published = of_name(published_, wanted.name);
  if (reserved == nullptr && published != nullptr && wanted.replaces != 0 && !is_handed_back) {
    if (published->generation != wanted.replaces) {
      throw another_generation(*published);
    }
    if (!may_manage(session, *published)) {
      throw may_not_manage("replace", *published);
    }
    return;
  }
  const segment* const other = reserved != nullptr ? reserved : published;
  if (other == nullptr) {
    return;
  }
  // The name is freed with it.
  if (waits_for_fence(*other) && (other->lifetime != lifetime::persistent || !other->published)) {
    throw writer_ending(*other);
  }
  throw error(errc::already_exists,
              {},
              {},
              other->published ? "a segment of this name exists in domain " + name_
                               : "a segment of this name is being created by pid " +
                                     std::to_string(other->creator.pid),
              "open it, remove it first, or choose another name",
              {.pid = other->creator.pid});
}

const segment& domain::reserve(session_id session,
                               const reservation& wanted,
                               const std::optional<lost_segment>& back) {
  check_reservation(wanted);
  participant& creator = find_session(session);
  check_name_is_free(session, wanted, back.has_value());
  // Another process that hands it back does not become its creator: who pays and who may manage it
  // stays the same, and is the same after a restart.
  const peer made_by = back && !back->is_creator
                           ? peer{0, back->creator_uid, true, back->creator_principal}
                           : *creator.who;
  const auto held = std::make_shared<charges>(charges_of(made_by));
  const budget::amounts price = cost_of(wanted);
  const auto price_of = [&](resource what) { return price[static_cast<std::size_t>(what)]; };
  held->take(resource::segments, price_of(resource::segments));
  if (price_of(resource::gpu_bytes) != 0) {
    held->take_on(wanted.device.uuid, price_of(resource::gpu_bytes));
  } else {
    held->take(resource::host_bytes, price_of(resource::host_bytes));
  }
  held->take(resource::descriptors, price_of(resource::descriptors));
  held->take(resource::memory_bytes, price_of(resource::memory_bytes));

  const gpushm::generation generation = back ? back->generation : next_generation_;
  const auto at = segments_.emplace(generation, std::make_shared<segment>()).first;
  segment& created = *at->second;
  try {
    static_cast<reservation&>(created) = wanted;
    created.generation = generation;
    created.replaces = of_name(published_, wanted.name) != nullptr ? wanted.replaces : 0;
    created.creator = made_by;
    created.creator_session = session;
    created.leases.push_back({session, 1});
    creator.leased.insert(generation);
    creator.created.insert(generation);
    creator.unpublished.emplace(created.name, &created);
    reserved_.emplace(created.name, &created);
    created.slot = slots_.take();
    created.held = held;  // nothing from here on can fail
    ++lease_count_;
  } catch (...) {  // out of memory half-way
    reserved_.erase(created.name);
    creator.unpublished.erase(created.name);
    creator.leased.erase(generation);
    creator.created.erase(generation);
    segments_.erase(at);
    throw;
  }
  if (!back) {
    generation_times_.note(generation, now_);
    ++next_generation_;
  }
  forget_dead(created.name);
  note(record_kind::numbers);
  note(record_kind::lease, generation, session);
  show(created);
  return created;
}

void domain::set_payload(gpushm::generation generation, std::shared_ptr<core::payload> payload) {
  find(generation).payload = std::move(payload);
}

const segment& domain::check_attach(session_id session,
                                    gpushm::generation generation,
                                    std::uint32_t first,
                                    std::size_t count) const {
  const auto at = segments_.find(generation);
  if (at == segments_.end()) {
    throw stale(generation);
  }
  const segment& what = *at->second;
  if (what.creator_session != session) {
    throw error(errc::permission_denied,
                {},
                {},
                "only the connection that reserved a segment may attach its chunks",
                "create it on this connection");
  }
  if (count == 0 || first != what.attached_chunks || count > what.chunk_count - first) {
    throw error(errc::wrong_descriptor_count,
                {},
                {},
                "chunks " + std::to_string(first) + " to " + std::to_string(first + count) +
                    " do not follow the " + std::to_string(what.attached_chunks) + " of " +
                    std::to_string(what.chunk_count) + " attached chunks",
                "attach the announced chunks in order");
  }
  return what;
}

const segment& domain::attach(session_id session,
                              gpushm::generation generation,
                              std::uint32_t first,
                              std::size_t count) {
  static_cast<void>(check_attach(session, generation, first, count));
  segment& what = find(generation);
  what.attached_chunks += static_cast<std::uint32_t>(count);
  note(record_kind::segment, generation);
  return what;
}

void domain::publish(session_id session,
                     gpushm::generation generation,
                     std::span<const std::byte> metadata) {
  segment& what = find(generation);
  if (!may_manage(session, what)) {
    throw error(errc::permission_denied,
                {},
                {},
                "only its creator's connection, its uid in the same pod or container, or the "
                "broker's uid may publish a segment",
                "publish it where it was created");
  }
  if (what.published) {
    throw error(
        errc::already_published, {}, {}, "the segment is already published", "publish once");
  }
  if (what.removed) {  // its name may belong to another segment
    throw error(errc::segment_removed,
                {},
                {},
                what.device_lost ? "the GPU that had its memory was lost before it was published"
                                 : "the segment was removed before it was published",
                "create it again");
  }
  if (what.attached_chunks != what.chunk_count) {
    throw error(errc::wrong_descriptor_count,
                {},
                {},
                std::to_string(what.attached_chunks) + " of " + std::to_string(what.chunk_count) +
                    " announced chunks are attached",
                "attach all chunks before publishing");
  }
  if (metadata.size() > max_metadata_bytes) {
    throw error(
        errc::message_too_large,
        {},
        {},
        "the metadata has " + std::to_string(metadata.size()) + " bytes, the limit is 65536",
        "put large tables into the segment itself");
  }
  std::shared_ptr<metadata_block> kept;
  if (!metadata.empty()) {
    kept = std::make_shared<metadata_block>();
    kept->bytes.assign(metadata.begin(), metadata.end());
    kept->held = what.held;
    what.held->take(resource::memory_bytes, metadata.size());
  }
  what.metadata = std::move(kept);                                 // nothing from here on can fail
  if (segment* const replaced = of_name(published_, what.name)) {  // of generation `what.replaces`
    unname(*replaced);
    emit(event_kind::removed, *replaced, actor_of(session));
    free_if_unused(*replaced);
  }
  forget_dead(what.name);  // of one that it was to replace
  published_.insert(reserved_.extract(what.name));
  what.replaces = 0;
  if (const auto creator = sessions_.find(what.creator_session); creator != sessions_.end()) {
    creator->second.unpublished.erase(what.name);
  }
  what.published = true;
  note(record_kind::metadata, generation);
  note(record_kind::segment, generation);
  emit(event_kind::published, what, actor_of(session));
  wake(what);
}

// ---- removal ----

void domain::unname(segment& what, bool exporter_gone) {
  if (what.removed) {
    return;
  }
  what.removed = true;
  what.exporter_gone = exporter_gone;
  if (what.published) {
    published_.erase(what.name);
  } else {
    reserved_.erase(what.name);
    if (const auto creator = sessions_.find(what.creator_session); creator != sessions_.end()) {
      creator->second.unpublished.erase(what.name);
    }
  }
  show(what);
  for (const lease& held : what.leases) {
    if (ending_sessions_ != 0 && is_ending(held.holder)) {
      continue;  // it has no connection; a client that resumes reads the state table
    }
    effects_.changes.push_back({event_kind::removed,
                                what.shared_from_this(),
                                static_cast<std::uint32_t>(what.leases.size()),
                                0,
                                held.holder});
  }
}

/// Lets later opens of the name report why it does not exist. The oldest names are dropped.
void domain::remember_dead(const std::string& name, bool device_lost) {
  if (limits_.max_dead_names == 0 || dead_names_.contains(name)) {
    return;
  }
  const std::uint64_t place = next_dead_name_;
  try {
    dead_names_in_order_.emplace(place, dead_name{name, device_lost});
    dead_names_.emplace(name, place);
  } catch (const std::bad_alloc&) {  // only the error text is worse
    dead_names_in_order_.erase(place);
    return;
  }
  ++next_dead_name_;
  note(record_kind::numbers);
  note(record_kind::dead_name, place);
  while (dead_names_in_order_.size() > limits_.max_dead_names) {
    const auto oldest = dead_names_in_order_.begin();
    note(record_kind::dead_name, oldest->first);
    dead_names_.erase(oldest->second.name);
    dead_names_in_order_.erase(oldest);
  }
}

/// The name is in use again.
void domain::forget_dead(std::string_view name) noexcept {
  if (const auto dead = dead_names_.find(name); dead != dead_names_.end()) {
    note(record_kind::dead_name, dead->second);
    dead_names_in_order_.erase(dead->second);
    dead_names_.erase(dead);
  }
}

void domain::remove(session_id session, std::string_view name, gpushm::generation generation) {
  base::check_name({}, name);
  segment& what = visible(session, name, generation);
  if (!may_manage(session, what)) {
    throw may_not_manage("remove", what);
  }
  unname(what);
  if (what.published) {  // unpublished segments cause no events
    emit(event_kind::removed, what, actor_of(session));
  }
  free_if_unused(what);
}

void domain::withdraw(segment& what) {
  if (what.removed) {
    return;
  }
  unname(what);
  if (what.published) {
    emit(event_kind::removed, what, nullptr);
  }
}

void domain::lose_memory(gpushm::generation generation) {
  segment& what = *segments_.at(generation);
  withdraw(what);
  free_if_unused(what);
}

bool domain::remove_unheld(gpushm::generation generation) {
  const auto found = segments_.find(generation);
  if (found == segments_.end()) {
    return false;
  }
  segment& what = *found->second;
  if (what.lifetime != lifetime::persistent || !what.published || what.removed ||
      !what.leases.empty()) {
    return false;
  }
  withdraw(what);
  free_if_unused(what);
  return true;
}

std::vector<std::string> domain::holders_of(const segment& what, std::size_t max_names) const {
  constexpr std::size_t max_leases = 256;
  std::vector<std::string> result;
  std::size_t left = max_leases;
  for (const lease& each : what.leases) {
    if (left-- == 0 || result.size() == max_names) {
      break;
    }
    const auto holder = sessions_.find(each.holder);
    if (holder == sessions_.end()) {
      continue;  // it has ended, and this lease ends soon
    }
    const std::string& name = holder->second.held.who()->name();
    if (std::find(result.begin(), result.end(), name) == result.end()) {
      result.push_back(name);
    }
  }
  return result;
}

// ---- lost devices ----

void domain::lose_device(lost_device what) {
  constexpr std::size_t max_lost_devices = 64;
  if (what.uuid.empty()) {
    throw error(errc::invalid_argument,
                {},
                {},
                "the lost GPU has no UUID",
                "name it as `gpushm topo` and `nvidia-smi -L` do");
  }
  if (lost_devices_.size() >= max_lost_devices) {
    throw error(errc::too_many_requests,
                {},
                {},
                std::to_string(lost_devices_.size()) + " lost GPUs wait for their turn",
                "repeat it");
  }
  lost_devices_.push_back({std::move(what), next_generation_, 0});
}

/// Some of the segments of the first device that was lost.
void domain::lose_some() {
  constexpr std::size_t slots_per_turn = 4'096;
  ending_device& from = lost_devices_.front();
  const auto is_on = [&](const device_id& at) {
    return at.kind != device_kind::host &&
           (at.uuid == from.of.uuid || (at.kind == device_kind::mig && !at.pci_address.empty() &&
                                        at.pci_address == from.of.pci_address));
  };
  std::size_t left = leases_per_turn();
  for (std::size_t some = slots_per_turn; some != 0 && left != 0; --some, ++from.next_slot) {
    if (from.next_slot >= slots_.end()) {
      lost_devices_.pop_front();
      return;
    }
    const slot_word word = slots_.word_of(from.next_slot);
    if (!word.state || word.generation >= from.end) {
      continue;
    }
    const auto found = segments_.find(word.generation);
    if (found == segments_.end() || found->second->device_lost || !is_on(found->second->device)) {
      continue;
    }
    if (!has_room_to_end(*found->second)) {
      return;  // the same one in the next turn
    }
    --left;
    lose_device_of(*found->second);
  }
}

/// Leases stay: their holders see the state.
void domain::lose_device_of(segment& what) {
  what.device_lost = true;
  if (what.removed) {
    show(what);
    return;
  }
  if (what.published) {
    remember_dead(what.name, true);
  }
  withdraw(what);
  free_if_unused(what);
}

/// True while leased, or persistent, published and not removed.
bool domain::is_in_use(const segment& what) noexcept {
  return !what.leases.empty() ||
         (what.lifetime == lifetime::persistent && what.published && !what.removed);
}

/// Its exporter's lease has ended, and not all opens that wait for it are refused. The segment
/// exists until then, also for a successor.
bool domain::has_opens_to_refuse(const segment& what) const {
  return base::ends_with_creator(what.backend) && what.creator_session == 0 && what.removed &&
         confirming_by_generation_.contains(what.generation);
}

void domain::free_if_unused(segment& what) {
  if (is_in_use(what) || has_opens_to_refuse(what)) {
    return;
  }
  withdraw(what);
  effects_.slots.push_back(slots_.release(what.slot));
  if (const auto creator = sessions_.find(what.creator_session); creator != sessions_.end()) {
    creator->second.created.erase(what.generation);
  }
  note(record_kind::segment, what.generation);
  note(record_kind::metadata, what.generation);
  // Effects may still refer to it.
  const std::shared_ptr<segment> freed = what.shared_from_this();
  segments_.erase(what.generation);
  freed->payload.reset();
  freed->metadata.reset();
  freed->held.reset();
}

}  // namespace gpushm::core
