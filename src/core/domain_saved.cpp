// SPDX-License-Identifier: Apache-2.0
// The state of a domain as values, and a domain from them.
#include <algorithm>
#include <string>
#include <utility>

#include "base/segments/exporter_bound.hpp"
#include "base/segments/versioned_names.hpp"
#include "core/domain.hpp"
#include "core/inconsistent.hpp"
#include "core/saved_state.hpp"

namespace gpushm::core {

namespace {

template <typename Map>
const typename Map::mapped_type* find_in(const Map& map, const typename Map::key_type& key) {
  const auto at = map.find(key);
  return at == map.end() ? nullptr : &at->second;
}

}  // namespace

saved_value domain::saved(const record_name& name) const {
  switch (name.kind) {
    case record_kind::numbers:
      return saved_numbers{next_generation_,
                           next_waiting_,
                           next_confirmation_,
                           next_dead_name_,
                           next_session_,
                           next_change_};
    case record_kind::session:
      if (const participant* const from = find_in(sessions_, name.first)) {
        saved_session to;
        to.who = *from->who;
        if (from->lost) {
          to.lost = {from->lost->since, from->lost->waits_for};
        }
        to.kept = from->kept;
        to.resumes = from->resumes;
        return to;
      }
      break;
    case record_kind::segment:
      if (const auto* const at = find_in(segments_, name.first)) {
        const segment& from = **at;
        saved_segment to;
        static_cast<reservation&>(to) = static_cast<const reservation&>(from);
        to.slot = from.slot;
        to.attached_chunks = from.attached_chunks;
        to.published = from.published;
        to.removed = from.removed;
        to.used = from.used;
        to.creator = from.creator;
        to.creator_session = from.creator_session;
        to.exporter_gone = from.exporter_gone;
        to.loss = from.loss();
        to.complete = from.complete;
        return to;
      }
      break;
    case record_kind::metadata:
      if (const auto* const at = find_in(segments_, name.first); at != nullptr && (*at)->metadata) {
        return saved_metadata{(*at)->metadata->bytes};
      }
      break;
    case record_kind::lease:
      if (const auto* const at = find_in(segments_, name.first)) {
        for (const lease& held : (*at)->leases) {
          if (held.holder == name.second) {
            return saved_lease{held.count, held.used, held.kept};
          }
        }
      }
      break;
    case record_kind::subscription:
      if (const participant* const of = find_in(sessions_, name.first);
          of == nullptr || of->subscriptions == 0) {
        break;  // all of them have ended, with no look at those of others
      }
      for (const subscription& each : subscriptions_) {
        if (each.session == name.first && each.id == name.second) {
          return saved_subscription{each.prefix};
        }
      }
      break;
    case record_kind::waiting:
      if (const waiting_open* const from = find_in(waiting_, name.first)) {
        return saved_open{from->session, from->request};
      }
      break;
    case record_kind::confirmation:
      if (const waiting_confirmation* const from = find_in(confirming_, name.first)) {
        return saved_confirmation{from->session,
                                  from->request,
                                  from->generation,
                                  from->deadline,
                                  from->exporter,
                                  from->sent};
      }
      break;
    case record_kind::end:
      for (const ended_session& each : ended_) {
        if (each.session == name.first && each.has_leases()) {
          return saved_end{*each.who, static_cast<std::uint8_t>(each.how)};
        }
      }
      break;
    case record_kind::unkept:
      for (const unkept& each : unkept_) {
        if (each.session == name.first) {
          return saved_part(each, name.second);
        }
      }
      break;
    case record_kind::dead_name:
      if (const dead_name* const dead = find_in(dead_names_in_order_, name.first)) {
        return saved_dead_name{dead->name, dead->loss};
      }
      break;
    case record_kind::version:
      if (auto version = versions_.saved_version_of(name.first)) {
        return std::move(*version);
      }
      break;
    case record_kind::alias:
      if (auto alias = versions_.saved_alias_of(static_cast<std::uint32_t>(name.first))) {
        return std::move(*alias);
      }
      break;
  }
  return {};
}

saved_value domain::saved_part(const unkept& unkept, std::uint64_t part) {
  const auto count = static_cast<std::ptrdiff_t>(unkept.left.size());
  const auto from = std::min(static_cast<std::ptrdiff_t>(part * unkept::part_size), count);
  const auto to = std::min(from + static_cast<std::ptrdiff_t>(unkept::part_size), count);
  if (from == to) {
    return {};
  }
  return saved_unkept{{unkept.left.begin() + from, unkept.left.begin() + to}};
}

saved_state domain::save() const {
  saved_state result;
  visit_saved([&](const record_name& name, saved_value value) {
    result.records.emplace(name, std::move(value));
  });
  return result;
}

void domain::visit_saved(const std::function<void(const record_name&, saved_value)>& visit) const {
  const auto add = [&](record_kind kind, std::uint64_t first = 0, std::uint64_t second = 0) {
    const record_name which{kind, first, second};
    saved_value value = saved(which);
    if (value.index() != 0) {
      visit(which, std::move(value));
    }
  };
  add(record_kind::numbers);
  for (const auto& [id, each] : sessions_) {
    add(record_kind::session, id);
  }
  for (const auto& [generation, each] : segments_) {
    add(record_kind::segment, generation);
    add(record_kind::metadata, generation);
    // Not by `saved`, which looks each of them up among all.
    for (const lease& held : each->leases) {
      visit({record_kind::lease, generation, held.holder},
            saved_lease{held.count, held.used, held.kept});
    }
  }
  for (const subscription& each : subscriptions_) {
    visit({record_kind::subscription, each.session, each.id}, saved_subscription{each.prefix});
  }
  for (const auto& [id, each] : waiting_) {
    add(record_kind::waiting, id);
  }
  for (const auto& [id, each] : confirming_) {
    add(record_kind::confirmation, id);
  }
  for (const ended_session& each : ended_) {
    add(record_kind::end, each.session);
  }
  for (const unkept& each : unkept_) {
    for (std::uint64_t part = 0; part * unkept::part_size < each.left.size(); ++part) {
      visit({record_kind::unkept, each.session, part}, saved_part(each, part));
    }
  }
  for (const auto& [place, dead] : dead_names_in_order_) {
    add(record_kind::dead_name, place);
  }
  versions_.visit_records([&](const version_table::changed& each) {
    add(each.is_alias ? record_kind::alias : record_kind::version, each.key);
  });
}

domain::domain(std::string name,
               std::uint32_t owner_uid,
               const limits& bounds,
               std::shared_ptr<process_budget> process,
               saved_state& state)
    : domain(std::move(name), owner_uid, bounds, std::move(process)) {
  for (auto& [which, value] : state.records) {
    const std::uint64_t key = which.first;
    if (const auto* const numbers = std::get_if<saved_numbers>(&value)) {
      next_generation_ = numbers->next_generation;
      next_waiting_ = numbers->next_waiting;
      next_confirmation_ = numbers->next_confirmation;
      next_dead_name_ = numbers->next_dead_name;
      next_session_ = numbers->next_session;
      next_change_ = numbers->next_change;
    } else if (const auto* const session = std::get_if<saved_session>(&value)) {
      restore_session(key, *session);
    } else if (const auto* const segment = std::get_if<saved_segment>(&value)) {
      restore_segment(key, *segment);
    } else if (auto* const metadata = std::get_if<saved_metadata>(&value)) {
      restore_metadata(key, std::move(*metadata));
    } else if (const auto* const held = std::get_if<saved_lease>(&value)) {
      restore_lease(key, which.second, *held);
    } else if (const auto* const subscribed = std::get_if<saved_subscription>(&value)) {
      restore_subscription(key, which.second, *subscribed);
    } else if (const auto* const open = std::get_if<saved_open>(&value)) {
      restore_waiting(key, *open);
    } else if (const auto* const confirmation = std::get_if<saved_confirmation>(&value)) {
      restore_confirmation(key, *confirmation);
    } else if (const auto* const over = std::get_if<saved_end>(&value)) {
      restore_end(key, *over);
    } else if (const auto* const left = std::get_if<saved_unkept>(&value)) {
      restore_unkept(key, *left);
    } else if (const auto* const dead = std::get_if<saved_dead_name>(&value)) {
      require(key < next_dead_name_ && dead_names_.emplace(dead->name, key).second,
              "a name is dead twice");
      dead_names_in_order_.emplace(key, dead_name{dead->name, dead->loss});
    } else if (const auto* const version = std::get_if<saved_version>(&value)) {
      restore_version(key, *version);
    } else if (const auto* const alias = std::get_if<saved_alias>(&value)) {
      restore_alias(static_cast<std::uint32_t>(key), *alias);
    }
  }
  restore_indexes();
}

void domain::restore_session(session_id id, const saved_session& session) {
  participant to;
  to.who = std::make_shared<const peer>(session.who);
  to.is_operator = is_owner(session.who);
  to.held = charges_of(session.who);
  to.held.charge(resource::memory_bytes, cost::connection);
  to.held.charge(resource::connections, session.lost ? 0 : 1);
  to.held.charge(resource::descriptors,
                 session.lost ? std::min(limits_.descriptors_per_session,
                                         limits_.descriptors_per_ending_session)
                              : limits_.descriptors_per_session);
  if (session.lost) {
    to.lost = participant::loss{session.lost->since, session.lost->waits_for};
    ++ending_sessions_;
  }
  if (session.kept) {
    to.kept = session.kept;
    std::sort(to.kept->begin(), to.kept->end());
  }
  to.resumes = session.resumes;
  to.over.emplace_back();
  sessions_.emplace(id, std::move(to));
  next_session_ = std::max(next_session_, id + 1);
}

std::shared_ptr<charges> domain::charges_of_existing(const reservation& reservation,
                                                     const peer& creator) {
  auto result = std::make_shared<charges>(charges_of(creator));
  const budget::amounts price = cost_of(reservation);
  for (std::size_t i = 0; i != price.size(); ++i) {
    if (const auto each = static_cast<resource>(i); each != resource::gpu_bytes) {
      result->charge(each, price[i]);
    } else if (price[i] != 0) {
      result->charge_on(reservation.device.uuid, price[i]);
    }
  }
  return result;
}

void domain::restore_segment(gpushm::generation generation, const saved_segment& saved) {
  require(generation != 0 && generation < next_generation_,
          "a segment has a generation that was not given out");
  segment& to = *segments_.emplace(generation, std::make_shared<segment>()).first->second;
  static_cast<reservation&>(to) = static_cast<const reservation&>(saved);
  to.generation = generation;
  to.slot = saved.slot;
  to.attached_chunks = saved.attached_chunks;
  to.published = saved.published;
  to.removed = saved.removed;
  to.used = saved.used;
  to.creator = saved.creator;
  to.creator_session = saved.creator_session;
  to.exporter_gone = saved.exporter_gone;
  to.set_loss(saved.loss);
  to.complete = saved.complete;
  to.is_versioned = base::is_versioned_name(to.name);
  require(slots_.take({to.slot, generation, to.state()}),
          "a segment has a slot that does not exist, or that of another one");
  to.held = charges_of_existing(saved, saved.creator);
  const auto creator = sessions_.find(saved.creator_session);
  if (creator != sessions_.end()) {
    creator->second.created.insert(generation);
  }
  if (saved.removed) {
    return;
  }
  require((saved.published ? published_ : reserved_).emplace(to.name, &to).second,
          "two segments have one name");
  if (!saved.published && creator != sessions_.end()) {
    creator->second.unpublished.emplace(to.name, &to);
  }
}

void domain::restore_metadata(gpushm::generation generation, saved_metadata metadata) {
  const auto segment = segments_.find(generation);
  require(segment != segments_.end(), "metadata belongs to no segment");
  auto kept = std::make_shared<metadata_block>();
  kept->bytes = std::move(metadata.bytes);
  kept->held = segment->second->held;
  segment->second->held->charge(resource::memory_bytes, kept->bytes.size());
  segment->second->metadata = std::move(kept);
}

void domain::restore_lease(gpushm::generation generation,
                           session_id holder,
                           const saved_lease& lease) {
  const auto entry = segments_.find(generation);
  require(entry != segments_.end(), "a lease belongs to no segment");
  segment& segment = *entry->second;
  segment.leases.push_back({holder, lease.count, lease.used, lease.kept});
  ++lease_count_;
  make_room(segment.leases.size(), 0);
  const auto at = sessions_.find(holder);
  if (at == sessions_.end()) {
    return;  // of an ended session
  }
  at->second.leased.insert(generation);
  if (holder != segment.creator_session) {
    at->second.held.charge(resource::memory_bytes, cost::lease);
  }
}

void domain::restore_subscription(session_id session,
                                  std::uint64_t id,
                                  const saved_subscription& subscription) {
  const auto at = sessions_.find(session);
  require(at != sessions_.end(), "a subscription belongs to no session");
  at->second.held.charge(resource::subscriptions, 1);
  at->second.held.charge(resource::memory_bytes, cost::subscription + subscription.prefix.size());
  ++at->second.subscriptions;
  subscriptions_.push_back({session, id, subscription.prefix, next_place_++});
}

void domain::restore_waiting(std::uint64_t id, const saved_open& open) {
  const auto at = sessions_.find(open.session);
  require(at != sessions_.end(), "an open belongs to no session");
  base::check_segment_name({}, open.request.name);
  require(id < next_waiting_ && open.request.deadline,
          "an open waits under a number that was not given out, or forever");
  waiting_.emplace(id, waiting_open{open.session, open.request});
  at->second.held.charge(resource::waiting_opens, 1);
  at->second.held.charge(resource::memory_bytes, cost::waiting_open(open.request.name.size()));
  at->second.waiting.insert(id);
  deadlines_.add({*open.request.deadline, deadline_queue::kind::waiting, id});
  name_waiters& same = waiting_by_name_[open.request.name];
  if (same.ids.empty()) {
    same.place.assign(1, open.request.name);
  }
  same.ids.insert(id);
}

void domain::restore_confirmation(std::uint64_t id, const saved_confirmation& confirmation) {
  const auto at = sessions_.find(confirmation.session);
  require(at != sessions_.end(), "an open belongs to no session");
  base::check_segment_name({}, confirmation.request.name);
  require(id < next_confirmation_, "a confirmation has a number that was not given out");
  confirming_.emplace(id,
                      waiting_confirmation{confirmation.session,
                                           confirmation.request,
                                           confirmation.generation,
                                           confirmation.deadline,
                                           confirmation.exporter,
                                           confirmation.sent});
  at->second.held.charge(resource::waiting_opens, 1);
  at->second.held.charge(resource::memory_bytes,
                         cost::waiting_open(confirmation.request.name.size()));
  at->second.confirming.insert(id);
  deadlines_.add({confirmation.deadline, deadline_queue::kind::confirmation, id});
  confirming_opens& same = confirming_by_generation_[confirmation.generation];
  if (same.ids.empty()) {
    same.place.assign(1, confirmation.generation);
  }
  same.ids.insert(id);
  make_room(0, same.ids.size());
  if (const auto exporter = sessions_.find(confirmation.exporter); exporter != sessions_.end()) {
    (confirmation.sent ? exporter->second.awaiting_reply : exporter->second.queued_questions)
        .insert(id);
  }
}

void domain::restore_end(session_id session, const saved_end& end) {
  require(end.how <= static_cast<std::uint8_t>(end_kind::unfenced),
          "a session has ended in an unknown way");
  ended_session& to = ended_.emplace_back();
  to.session = session;
  to.who = std::make_shared<const peer>(end.who);
  to.how = static_cast<end_kind>(end.how);
}

/// The parts come in order.
void domain::restore_unkept(session_id session, const saved_unkept& unkept) {
  if (unkept_.empty() || unkept_.back().session != session) {
    unkept_.push_back({session, {}});
  }
  auto& left = unkept_.back().left;
  left.insert(left.end(), unkept.left.begin(), unkept.left.end());
}

void domain::restore_indexes() {
  for (const auto& [id, each] : sessions_) {
    if (each.resumes != 0) {
      const auto lost = sessions_.find(each.resumes);
      require(lost != sessions_.end() && lost->second.lost && !lost->second.lost->is_resumed,
              "a session resumes one that is not ending");
      lost->second.lost->is_resumed = true;
    }
  }
  for (const auto& [name, reserved] : reserved_) {
    const segment* const published = of_name(published_, name);
    require(published == nullptr || published->generation == reserved->replaces,
            "two segments have one name");
  }
  std::unordered_map<session_id, ended_session*> over;
  for (ended_session& each : ended_) {
    over.emplace(each.session, &each);
  }
  for (const auto& entry : segments_) {
    const segment& reserved = *entry.second;
    // What is left of an ended session: its leases, and what it has created.
    const auto ends_with = [&](session_id session) {
      if (sessions_.contains(session)) {
        return true;
      }
      const auto at = over.find(session);
      if (at != over.end()) {
        at->second->left.insert(reserved.generation);
      }
      return at != over.end();
    };
    static_cast<void>(ends_with(reserved.creator_session));
    if (reserved.is_versioned && !reserved.removed) {
      const auto parsed = base::parse_versioned_name({}, reserved.name);
      versions_.restore_segment(parsed.base,
                                parsed.number,
                                parsed.part,
                                reserved.generation,
                                reserved.allocated_bytes,
                                reserved.complete || reserved.published);
      if (!reserved.leases.empty()) {
        versions_.hold(reserved.generation);
      }
    }
    for (const lease& held : reserved.leases) {
      // Otherwise it would never end.
      require(ends_with(held.holder), "a lease belongs to no session");
    }
  }
  versions_.finish_restoring();
  versions_.visit_building([&](std::uint64_t id, session_id builder) {
    const auto at = over.find(builder);
    require(at != over.end() || sessions_.contains(builder), "a version belongs to no session");
    if (at != over.end()) {
      at->second->building.insert(id);
    }
  });
  make_room_to_record(waiting_.size() + confirming_.size() + subscriptions_.size());
  // Opens that were left for a later turn.
  for (auto& [generation, same] : confirming_by_generation_) {
    const auto at = segments_.find(generation);
    if (at != segments_.end() && has_opens_to_refuse(*at->second)) {
      to_refuse_.splice(to_refuse_.end(), same.place);
    }
  }
  for (auto& [name, same] : waiting_by_name_) {
    const segment* const at = published_of(name);
    if (at != nullptr && !waits_for_fence(*at)) {
      due_.splice(due_.end(), same.place);
    }
  }
}

}  // namespace gpushm::core
