// SPDX-License-Identifier: Apache-2.0
#include "core/domain.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "base/segments/exporter_bound.hpp"
#include "base/segments/names.hpp"
#include "base/segments/registered_names.hpp"
#include "base/segments/versioned_names.hpp"

namespace gpushm::core {

namespace {

budget::amounts capacities(const limits& limits) {
  budget::amounts result{};
  const auto set = [&](resource resource, std::uint64_t amount) {
    result[static_cast<std::size_t>(resource)] = amount;
  };
  set(resource::memory_bytes, limits.max_memory_bytes);
  set(resource::descriptors, limits.max_descriptors);
  set(resource::connections, limits.max_connections);
  set(resource::segments, limits.max_segments);
  set(resource::host_bytes, limits.quota_bytes);
  set(resource::gpu_bytes, limits.quota_bytes);
  set(resource::subscriptions, limits.max_all_subscriptions);
  set(resource::waiting_opens, limits.max_waiting_opens);
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

constexpr std::size_t max_changes_per_end = 4;
constexpr std::size_t record_capacity = 4'096;
/// Objects that the end of one lease changes.
constexpr std::size_t max_records_per_end = 16;

/// Names of registered descriptors are unique numbers, and no segment's. Nobody counts what they
/// refer to: it is the exporter's.
void check_registration(const reservation& reservation) {
  const bool is_registration = reservation.backend == backend::descriptor;
  if (base::is_registered_name(reservation.name) != is_registration) {
    throw error(errc::invalid_argument,
                {},
                {},
                "names that begin with \".fd/\" are those of registered descriptors",
                "choose another name; `gpushm_client_register_descriptor` registers a descriptor");
  }
  if (is_registration &&
      (!base::registered_number(reservation.name) || reservation.allocated_bytes != 1)) {
    throw error(errc::invalid_argument,
                {},
                {},
                "this is not the number of a registered descriptor, or its size is not 1",
                "report this as a bug");
  }
}

void check_reservation(const reservation& reservation) {
  base::check_segment_name({}, reservation.name);
  const auto invalid = [](std::string_view cause, std::string_view next_step) {
    throw error(errc::invalid_argument, {}, {}, cause, next_step);
  };
  if (reservation.size_bytes == 0) {
    invalid("the size is 0 bytes", "give a size of at least 1 byte");
  }
  if (reservation.allocated_bytes > largest_segment_bytes) {
    invalid("the segment is larger than an address space (256 TiB)", "create a smaller one");
  }
  if (reservation.allocated_bytes < reservation.size_bytes) {
    invalid("the allocation is smaller than the segment", "report this as a bug");
  }
  if (reservation.offset_bytes > reservation.allocated_bytes - reservation.size_bytes) {
    invalid("the segment extends past its allocation", "report this as a bug");
  }
  const auto fixed = base::fixed_chunks(reservation.backend);
  if (fixed ? reservation.chunk_count != *fixed : reservation.chunk_count == 0) {
    invalid(fixed ? "wrong number of chunks for this kind of memory" : "the segment has no chunks",
            "report this as a bug");
  }
  if (base::has_ticket(reservation.backend)
          ? reservation.ticket.empty() || reservation.ticket.size() > longest_ticket_bytes
          : !reservation.ticket.empty()) {
    invalid("the ticket is missing, too long, or not for this kind of memory",
            "report this as a bug");
  }
  check_registration(reservation);
  if ((base::ends_with_creator(reservation.backend) || reservation.backend == backend::signals ||
       reservation.backend == backend::descriptor) &&
      reservation.lifetime != lifetime::leased) {
    invalid("what is bound to its creator cannot be persistent",
            "share it as leased, or create a persistent segment and copy");
  }
  if (base::is_on_host(reservation.backend) != (reservation.device.kind == device_kind::host)) {
    invalid("backend and device do not match", "report this as a bug");
  }
  constexpr std::size_t longest_device_text = 128;
  if (reservation.device.uuid.size() > longest_device_text ||
      reservation.device.pci_address.size() > longest_device_text) {
    invalid("the device's description is too long", "report this as a bug");
  }
  if (!is_plain_text(reservation.device.uuid) || !is_plain_text(reservation.device.pci_address)) {
    invalid("the device's description has characters other than printable ASCII",
            "report this as a bug");
  }
}

}  // namespace

bool is_same_member(const peer& left, const peer& right) {
  if (!left.uid_known || !right.uid_known || left.uid != right.uid ||
      left.is_foreign != right.is_foreign) {
    return false;
  }
  const principal& of = left.principal;
  return of.key.empty() || !of.vouched_for || of == right.principal;
}

budget::amounts cost_of(const reservation& reservation) {
  // Of a timeline page the broker has a second descriptor, for writing. Its memory is allocated
  // by the member.
  const bool is_page = reservation.backend == backend::signals;
  budget::amounts result{};
  const auto set = [&](resource resource, std::uint64_t amount) {
    result[static_cast<std::size_t>(resource)] = amount;
  };
  set(resource::segments, 1);
  if (reservation.backend != backend::descriptor) {  // what it refers to is the exporter's
    set(base::is_on_host(reservation.backend) ? resource::host_bytes : resource::gpu_bytes,
        reservation.allocated_bytes);
  }
  set(resource::descriptors, std::uint64_t{reservation.chunk_count} + (is_page ? 1 : 0));
  set(resource::memory_bytes,
      cost::segment + cost::lease + reservation.name.size() + reservation.ticket.size() +
          cost::chunk * reservation.chunk_count);
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
      slots_(bounds.max_segments),
      versions_(bounds.versions) {
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
bool domain::has_room_to_end(const segment& segment) const {
  // Its own, and those of the aliases of its name.
  const std::size_t max_words =
      2 + (segment.is_versioned ? 2UL * limits_.versions.aliases_per_name : 0);
  const auto confirming_by_generation = confirming_by_generation_.find(segment.generation);
  const std::size_t waiting = confirming_by_generation == confirming_by_generation_.end()
                                  ? 0
                                  : confirming_by_generation->second.ids.size();
  const auto has = [](const auto& room, std::size_t more) {
    return room.capacity() - room.size() >= more;
  };
  return has(effects_.slots, max_words) && has(effects_.replies, waiting) &&
         has(effects_.changes, segment.leases.size() + max_changes_per_end + max_words) &&
         has_room_to_record(max_records_per_end + waiting + max_words);
}

void domain::reply(session_id session,
                   const open_request& request,
                   const segment& segment) noexcept {
  effects_.replies.push_back({session,
                              request.request,
                              request.index,
                              segment.shared_from_this(),
                              std::nullopt,
                              request.waits,
                              alias_of(request.name)});
}

void domain::refuse(session_id session,
                    const open_request& request,
                    std::optional<error> why) noexcept {
  effects_.replies.push_back(
      {session, request.request, request.index, nullptr, std::move(why), request.waits});
}

void domain::show(const segment& segment) {
  note(record_kind::segment, segment.generation);
  effects_.slots.push_back(slots_.set(segment.slot, segment.generation, segment.state()));
}

// ---- permissions ----

bool domain::may_see(session_id session, const segment& segment) const {
  return segment.published || segment.creator_session == session;
}

bool domain::is_operator(session_id session) const {
  const auto at = sessions_.find(session);
  return at != sessions_.end() && at->second.is_operator;
}

/// Different containers may use one uid: where a member's principal is known, it must be the same,
/// too.
bool domain::may_manage(session_id session, const segment& segment) const {
  if (segment.creator_session == session || is_operator(session)) {
    return true;
  }
  const auto at = sessions_.find(session);
  return at != sessions_.end() && is_same_member(segment.creator, *at->second.who);
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

segment* domain::of_name(const names& names, std::string_view name) {
  const auto at = names.find(name);
  return at == names.end() ? nullptr : at->second;
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
  if (base::is_versioned_name(name) && base::parse_versioned_name({}, name).number == 0) {
    segment* const target = published_of(name);
    if (target == nullptr) {
      throw no_such_version(name);
    }
    if (generation != 0 && target->generation != generation) {
      throw another_generation(*target);
    }
    return *target;
  }
  segment* published = named(name);
  if (segment* const reserved = of_name(reserved_, name);
      generation != 0 && reserved != nullptr && reserved->generation == generation) {
    published = reserved;
  }
  if (published == nullptr || !may_see(session, *published)) {
    published = published_of(name);  // a generation does not show what else is hidden
  }
  if (published == nullptr) {
    throw no_such_segment(name);
  }
  if (generation != 0 && published->generation != generation) {
    throw another_generation(*published);
  }
  return *published;
}

const segment& domain::stat(session_id session,
                            std::string_view name,
                            gpushm::generation generation) const {
  base::check_segment_name({}, name);
  return visible(session, name, generation);
}

error domain::exporter_died() const {
  return {errc::peer_died,
          {},
          {},
          "the process that shared this memory in domain " + name_ + " has died",
          "start it again"};
}

error domain::memory_lost(const base::device_loss& loss) const {
  const std::string why = base::text_of(loss);
  return {
      errc::gone_or_replaced,
      {},
      {},
      "the GPU that had this memory was lost, in domain " + name_ + (why.empty() ? "" : ": " + why),
      "create it again, on a GPU that works"};
}

error domain::no_such_segment(std::string_view name) const {
  if (const auto dead = dead_names_.find(name); dead != dead_names_.end()) {
    const base::device_loss& loss = dead_names_in_order_.at(dead->second).loss;
    return loss ? memory_lost(loss) : exporter_died();
  }
  // Who forgets to publish looks for a wrong name, or for another broker.
  if (const segment* const segment = named(name);
      segment != nullptr && !segment->published && segment->creator_session != 0) {
    return {errc::no_such_segment,
            {},
            {},
            "it is being created by pid " + std::to_string(segment->creator.pid) +
                ", which has not published it yet, in domain " + name_,
            "publish it there",
            {.pid = segment->creator.pid}};
  }
  if (base::is_versioned_name(name) || versions_.has_name(name)) {
    return no_such_version(name);
  }
  return {errc::no_such_segment,
          {},
          {},
          "no such segment in domain " + name_,
          "`gpushm ls` lists segments"};
}

error domain::another_generation(const segment& segment) {
  return {errc::gone_or_replaced,
          {},
          {},
          "another segment has this name now: generation " + std::to_string(segment.generation),
          "the generation that was meant has been removed; `gpushm ls` shows the one that has the "
          "name"};
}

error domain::may_not_manage(std::string_view action, const segment& segment) {
  return {errc::permission_denied,
          {},
          {},
          "only its creator's connection, its uid in the same pod or container, or the broker's "
          "uid may " +
              std::string(action) + " a segment",
          segment.creator.uid_known
              ? "ask " + party_of(segment.creator) + " to " + std::string(action) + " it"
              : "have its creator or the broker's user " + std::string(action) + " it"};
}

// ---- creation ----

/// A segment that is handed back replaces none: the name is in use.
void domain::check_name_is_free(session_id session,
                                const reservation& reservation,
                                bool is_handed_back) const {
  const segment* const reserved = of_name(reserved_, reservation.name);
  const segment* const published = of_name(published_, reservation.name);
  if (reserved == nullptr && published != nullptr && reservation.replaces != 0 && !is_handed_back) {
    if (published->generation != reservation.replaces) {
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
                               const reservation& expected,
                               const std::optional<lost_segment>& back) {
  check_reservation(expected);
  participant& creator = find_session(session);
  check_reservation_of_version(session, expected, back.has_value());
  check_name_is_free(session, expected, back.has_value());
  // Another process that hands it back does not become its creator: who pays and who may manage it
  // stays the same, and is the same after a restart.
  const peer made_by = back && !back->is_creator
                           ? peer{0, back->creator_uid, true, back->creator_principal}
                           : *creator.who;
  const auto held = std::make_shared<charges>(charges_of(made_by));
  const budget::amounts price = cost_of(expected);
  const auto price_of = [&](resource resource) {
    return price[static_cast<std::size_t>(resource)];
  };
  held->take(resource::segments, price_of(resource::segments));
  if (price_of(resource::gpu_bytes) != 0) {
    held->take_on(expected.device.uuid, price_of(resource::gpu_bytes));
  } else {
    held->take(resource::host_bytes, price_of(resource::host_bytes));
  }
  held->take(resource::descriptors, price_of(resource::descriptors));
  held->take(resource::memory_bytes, price_of(resource::memory_bytes));

  const gpushm::generation generation = back ? back->generation : next_generation_;
  const auto at = segments_.emplace(generation, std::make_shared<segment>()).first;
  segment& created = *at->second;
  try {
    static_cast<reservation&>(created) = expected;
    created.generation = generation;
    created.replaces = of_name(published_, expected.name) != nullptr ? expected.replaces : 0;
    created.creator = made_by;
    created.creator_session = session;
    created.is_versioned = base::is_versioned_name(created.name);
    if (created.is_versioned) {
      const auto parsed = base::parse_versioned_name({}, created.name);
      versions_.reserve(
          parsed.base, parsed.number, parsed.part, generation, expected.allocated_bytes);
    }
    created.leases.push_back({session, 1});
    creator.leased.insert(generation);
    creator.created.insert(generation);
    creator.unpublished.emplace(created.name, &created);
    reserved_.emplace(created.name, &created);
    created.slot = slots_.take();
    created.held = held;  // nothing from here on can fail
    ++lease_count_;
  } catch (...) {  // out of memory half-way
    versions_.unreserve(generation);
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
  if (created.is_versioned) {
    versions_.hold(generation);
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
  const segment& segment = *at->second;
  if (segment.creator_session != session) {
    throw error(errc::permission_denied,
                {},
                {},
                "only the connection that reserved a segment may attach its chunks",
                "create it on this connection");
  }
  if (count == 0 || first != segment.attached_chunks || count > segment.chunk_count - first) {
    throw error(errc::wrong_descriptor_count,
                {},
                {},
                "chunks " + std::to_string(first) + " to " + std::to_string(first + count) +
                    " do not follow the " + std::to_string(segment.attached_chunks) + " of " +
                    std::to_string(segment.chunk_count) + " attached chunks",
                "attach the announced chunks in order");
  }
  return segment;
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
  segment& reserved = find(generation);
  if (!may_manage(session, reserved)) {
    throw error(errc::permission_denied,
                {},
                {},
                "only its creator's connection, its uid in the same pod or container, or the "
                "broker's uid may publish a segment",
                "publish it where it was created");
  }
  if (reserved.published || reserved.complete) {
    throw error(
        errc::already_published, {}, {}, "the segment is already published", "publish once");
  }
  const bool is_part = reserved.is_versioned && versions_.is_part_being_built(generation);
  if (reserved.removed ||  // its name may belong to another segment
      (reserved.is_versioned && !is_part && !versions_.is_visible(generation))) {
    throw error(errc::segment_removed,
                {},
                {},
                reserved.loss()    ? "the GPU that had its memory was lost before it was published"
                : reserved.removed ? "the segment was removed before it was published"
                                   : "its version was removed before it was published",
                "create it again");
  }
  if (reserved.attached_chunks != reserved.chunk_count) {
    throw error(errc::wrong_descriptor_count,
                {},
                {},
                std::to_string(reserved.attached_chunks) + " of " +
                    std::to_string(reserved.chunk_count) + " announced chunks are attached",
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
    kept->held = reserved.held;
    reserved.held->take(resource::memory_bytes, metadata.size());
  }
  if (is_part) {
    const auto before = std::exchange(reserved.metadata, std::move(kept));
    try {
      publish_part(session, reserved);
    } catch (...) {
      if (!metadata.empty()) {
        reserved.held->release(resource::memory_bytes, metadata.size());
      }
      reserved.metadata = before;
      throw;
    }
    note(record_kind::metadata, generation);
    return;
  }
  reserved.metadata = std::move(kept);  // nothing from here on can fail
  if (segment* const replaced =
          of_name(published_, reserved.name)) {  // of generation `reserved.replaces`
    unname(*replaced);
    emit(event_kind::removed, *replaced, actor_of(session));
    free_if_unused(*replaced);
  }
  publish_now(session, reserved);
  wake(reserved);
  if (reserved.is_versioned) {
    wake_under_aliases(reserved);
  }
}

// ---- removal ----

void domain::unname(segment& segment, bool exporter_gone) {
  if (segment.removed) {
    return;
  }
  segment.removed = true;
  segment.exporter_gone = exporter_gone;
  if (segment.published) {
    published_.erase(segment.name);
  } else {
    reserved_.erase(segment.name);
    if (const auto creator = sessions_.find(segment.creator_session); creator != sessions_.end()) {
      creator->second.unpublished.erase(segment.name);
    }
  }
  show(segment);
  if (segment.is_versioned) {
    versions_.forget(segment.generation, next_generation_);
    settle_versions();
  }
  for (const lease& held : segment.leases) {
    if (ending_sessions_ != 0 && is_ending(held.holder)) {
      continue;  // it has no connection; a client that resumes reads the state table
    }
    effects_.changes.push_back({event_kind::removed,
                                segment.shared_from_this(),
                                static_cast<std::uint32_t>(segment.leases.size()),
                                0,
                                held.holder});
  }
}

/// Lets later opens of the name report why it does not exist. The oldest names are dropped.
void domain::remember_dead(const std::string& name, base::device_loss loss) {
  if (limits_.max_dead_names == 0 || dead_names_.contains(name)) {
    return;
  }
  const std::uint64_t place = next_dead_name_;
  try {
    dead_names_in_order_.emplace(place, dead_name{name, loss});
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
  base::check_segment_name({}, name);
  if (base::is_versioned_name(name)) {
    const auto parsed = base::parse_versioned_name({}, name);
    if (parsed.number == 0) {
      throw error(errc::invalid_argument,
                  {},
                  {},
                  "an alias is not removed with what it refers to",
                  "remove the version by its number, or remove the alias");
    }
    const auto state = versions_.state_of(parsed.base, parsed.number);
    if (parsed.part.empty() && generation == 0 && state && *state != version_state::ending) {
      remove_version(session, parsed.base, parsed.number);
      return;
    }
  }
  segment& segment = visible(session, name, generation);
  if (!may_manage(session, segment)) {
    throw may_not_manage("remove", segment);
  }
  if (segment.is_versioned && versions_.is_part(segment.generation)) {
    const auto parsed = base::parse_versioned_name({}, segment.name);
    throw error(errc::invalid_argument,
                {},
                {},
                "a part is removed with its version",
                "remove " + base::text_of({parsed.base, parsed.number, {}, {}}));
  }
  unname(segment);
  if (segment.published) {  // unpublished segments cause no events
    emit(event_kind::removed, segment, actor_of(session));
  }
  free_if_unused(segment);
}

void domain::withdraw(segment& segment) {
  if (segment.removed) {
    return;
  }
  unname(segment);
  if (segment.published) {
    emit(event_kind::removed, segment, nullptr);
  }
}

void domain::lose_memory(gpushm::generation generation) {
  segment& what = *segments_.at(generation);
  withdraw(what);
  free_if_unused(what);
}

bool domain::remove_unheld(gpushm::generation generation) {
  const auto entry = segments_.find(generation);
  if (entry == segments_.end()) {
    return false;
  }
  segment& segment = *entry->second;
  if (segment.lifetime != lifetime::persistent || !segment.published || segment.removed ||
      !segment.leases.empty() || segment.is_versioned) {  // versions have a policy of their own
    return false;
  }
  withdraw(segment);
  free_if_unused(segment);
  return true;
}

std::vector<std::string> domain::holders_of(const segment& segment, std::size_t max_names) const {
  constexpr std::size_t max_leases = 256;
  std::vector<std::string> result;
  std::size_t left = max_leases;
  for (const lease& each : segment.leases) {
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

void domain::lose_device(lost_device device) {
  constexpr std::size_t max_lost_devices = 64;
  if (device.uuid.empty()) {
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
  lost_devices_.push_back({std::move(device), next_generation_, 0});
}

/// Some of the segments of the first device that was lost.
void domain::lose_some() {
  constexpr std::size_t slots_per_turn = 4'096;
  ending_device& from = lost_devices_.front();
  const auto is_on = [&](const device_id& id) {
    return id.kind != device_kind::host &&
           (id.uuid == from.of.uuid || (id.kind == device_kind::mig && !id.pci_address.empty() &&
                                        id.pci_address == from.of.pci_address));
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
    const auto segment = segments_.find(word.generation);
    if (segment == segments_.end() || segment->second->loss() || !is_on(segment->second->device)) {
      continue;
    }
    if (!has_room_to_end(*segment->second)) {
      return;  // the same one in the next turn
    }
    --left;
    lose_device_of(*segment->second, from.of.loss);
  }
}

/// Leases stay: their holders see the state.
void domain::lose_device_of(segment& segment, base::device_loss loss) {
  segment.set_loss(loss);
  if (segment.removed) {
    show(segment);
    return;
  }
  if (segment.published) {
    remember_dead(segment.name, loss);
  }
  withdraw(segment);
  free_if_unused(segment);
}

/// True while leased, or persistent, published and not removed.
bool domain::is_in_use(const segment& segment) noexcept {
  return !segment.leases.empty() || (segment.lifetime == lifetime::persistent &&
                                     (segment.published || segment.complete) && !segment.removed);
}

/// Its exporter's lease has ended, and not all opens that wait for it are refused. The segment
/// exists until then, also for a successor.
bool domain::has_opens_to_refuse(const segment& segment) const {
  return base::ends_with_creator(segment.backend) && segment.creator_session == 0 &&
         segment.removed && confirming_by_generation_.contains(segment.generation);
}

void domain::free_if_unused(segment& unused) {
  if (is_in_use(unused) || has_opens_to_refuse(unused)) {
    return;
  }
  withdraw(unused);
  effects_.slots.push_back(slots_.release(unused.slot));
  if (const auto creator = sessions_.find(unused.creator_session); creator != sessions_.end()) {
    creator->second.created.erase(unused.generation);
  }
  note(record_kind::segment, unused.generation);
  note(record_kind::metadata, unused.generation);
  // Effects may still refer to it.
  const std::shared_ptr<segment> freed = unused.shared_from_this();
  segments_.erase(unused.generation);
  freed->payload.reset();
  freed->metadata.reset();
  freed->held.reset();
}

}  // namespace gpushm::core
