// SPDX-License-Identifier: Apache-2.0
// The state of a domain as values, and a domain from them.
#include <algorithm>
#include <string>
#include <utility>

#include "base/exporter_bound.hpp"
#include "core/domain.hpp"
#include "core/saved_state.hpp"

namespace gpushm::core {

namespace {

void require(bool holds, std::string_view otherwise) {
  if (!holds) {
    throw error(errc::invalid_argument,
                {},
                {},
                "the saved state is inconsistent: " + std::string(otherwise),
                "report this as a bug");
  }
}

template <typename Map>
auto sorted_keys(const Map& map) {
  std::vector<typename Map::key_type> keys;
  keys.reserve(map.size());
  for (const auto& entry : map) {
    keys.push_back(entry.first);
  }
  std::sort(keys.begin(), keys.end());
  return keys;
}

}  // namespace

saved_state domain::save() const {
  saved_state result;
  result.next_generation = next_generation_;
  result.next_waiting = next_waiting_;
  result.next_confirmation = next_confirmation_;
  for (const session_id id : sorted_keys(sessions_)) {
    const participant& from = sessions_.at(id);
    saved_session& to = result.sessions.emplace_back();
    to.id = id;
    to.who = from.who;
    if (from.lost) {
      to.lost = {from.lost->since, from.lost->waits_for};
    }
    if (from.kept) {
      to.kept.emplace(from.kept->begin(), from.kept->end());
    }
    to.unanswered.assign(from.unanswered.begin(), from.unanswered.end());
    to.queued_questions.assign(from.queued_questions.begin(), from.queued_questions.end());
  }
  for (const gpushm::generation generation : sorted_keys(segments_)) {
    const segment& from = *segments_.at(generation);
    saved_segment& to = result.segments.emplace_back();
    static_cast<reservation&>(to) = static_cast<const reservation&>(from);
    to.generation = generation;
    to.slot = from.slot;
    to.attached_chunks = from.attached_chunks;
    to.published = from.published;
    to.removed = from.removed;
    to.used = from.used;
    to.creator = from.creator;
    to.creator_session = from.creator_session;
    to.leases = from.leases;
    if (from.metadata) {
      to.metadata = from.metadata->bytes;
    }
  }
  for (const subscription& each : subscriptions_) {
    result.subscriptions.push_back({each.session, each.id, each.prefix});
  }
  for (const auto& [id, open] : waiting_) {
    result.waiting.push_back({id, open.session, open.request});
  }
  for (const auto& [id, open] : confirming_) {
    result.confirming.push_back(
        {id, open.session, open.request, open.generation, open.deadline, open.exporter});
  }
  for (const ended_session& each : ended_) {
    result.ended.push_back({each.session,
                            each.pid,
                            static_cast<std::uint8_t>(each.how),
                            {each.left.begin(), each.left.end()}});
  }
  for (const unkept& each : unkept_) {
    result.unkept.push_back({each.session, each.left});
  }
  result.due.assign(due_.begin(), due_.end());
  result.dead_names.assign(dead_names_in_order_.begin(), dead_names_in_order_.end());
  return result;
}

domain::domain(std::string name,
               std::uint32_t owner_uid,
               const limits& bounds,
               std::shared_ptr<process_budget> process,
               const saved_state& from)
    : domain(std::move(name), owner_uid, bounds, std::move(process)) {
  restore_numbers(from);
  restore_sessions(from);
  restore_segments(from);
  restore_opens(from);
  restore_ends(from);
}

void domain::restore_numbers(const saved_state& from) {
  next_generation_ = from.next_generation;
  next_waiting_ = from.next_waiting;
  next_confirmation_ = from.next_confirmation;
  dead_names_in_order_.assign(from.dead_names.begin(), from.dead_names.end());
  dead_names_.insert(from.dead_names.begin(), from.dead_names.end());
}

void domain::restore_sessions(const saved_state& from) {
  for (const saved_session& each : from.sessions) {
    participant to;
    to.who = each.who;
    to.is_operator = each.who.uid_known && each.who.uid == owner_uid_;
    to.held = charges_of(each.who);
    to.held.charge(resource::memory_bytes, cost::connection);
    to.held.charge(resource::connections, each.lost ? 0 : 1);
    to.held.charge(resource::descriptors,
                   each.lost ? std::min(limits_.descriptors_per_session,
                                        limits_.descriptors_per_ending_session)
                             : limits_.descriptors_per_session);
    if (each.lost) {
      to.lost = participant::loss{each.lost->since, each.lost->waits_for};
      ++ending_sessions_;
    }
    if (each.kept) {
      to.kept.emplace(each.kept->begin(), each.kept->end());
    }
    to.unanswered.assign(each.unanswered.begin(), each.unanswered.end());
    to.queued_questions.assign(each.queued_questions.begin(), each.queued_questions.end());
    to.over.emplace_back();
    require(sessions_.emplace(each.id, std::move(to)).second, "two sessions have one number");
  }
  for (const saved_subscription& each : from.subscriptions) {
    const auto subscriber = sessions_.find(each.session);
    require(subscriber != sessions_.end(), "a subscription belongs to no session");
    subscriber->second.held.charge(resource::subscriptions, 1);
    subscriber->second.held.charge(resource::memory_bytes, cost::subscription + each.prefix.size());
    ++subscriber->second.subscriptions;
    subscriptions_.push_back({each.session, each.id, each.prefix});
  }
}

void domain::restore_segments(const saved_state& from) {
  std::set<std::uint32_t> slots;
  for (const saved_segment& each : from.segments) {
    require(each.generation != 0 && each.generation < next_generation_,
            "a segment has a generation that was not given out");
    require(each.slot < limits_.max_segments && slots.insert(each.slot).second,
            "a segment has a slot of another one, or none");
    const auto [at, is_new] = segments_.emplace(each.generation, std::make_shared<segment>());
    require(is_new, "two segments have one generation");
    segment& to = *at->second;
    static_cast<reservation&>(to) = static_cast<const reservation&>(each);
    to.generation = each.generation;
    to.slot = each.slot;
    to.attached_chunks = each.attached_chunks;
    to.published = each.published;
    to.removed = each.removed;
    to.used = each.used;
    to.creator = each.creator;
    to.creator_session = each.creator_session;
    to.leases = each.leases;
    to.held = std::make_shared<charges>(charges_of(each.creator));
    to.held->charge(resource::segments, 1);
    to.held->charge(resource::segment_bytes, each.allocated_bytes);
    to.held->charge(resource::descriptors, each.chunk_count);
    to.held->charge(resource::memory_bytes,
                    cost::segment + cost::lease + each.name.size() + each.ticket.size() +
                        cost::chunk * each.chunk_count + each.metadata.size());
    if (!each.metadata.empty()) {
      auto kept = std::make_shared<metadata_block>();
      kept->bytes = each.metadata;
      kept->held = to.held;
      to.metadata = std::move(kept);
    }
    const auto creator = sessions_.find(each.creator_session);
    if (creator != sessions_.end()) {
      creator->second.created.insert(each.generation);
    }
    if (!each.removed) {
      require((each.published ? published_ : reserved_).emplace(to.name, &to).second,
              "two segments have one name");
      if (!each.published && creator != sessions_.end()) {
        creator->second.unpublished.emplace(to.name, &to);
      }
    }
    for (const lease& claim : to.leases) {
      require(claim.count != 0, "a lease has no answers");
      ++lease_count_;
      const auto holder = sessions_.find(claim.holder);
      if (holder == sessions_.end()) {
        continue;  // of an ended session
      }
      require(holder->second.leased.insert(each.generation).second,
              "a session has two leases of one segment");
      if (claim.holder != each.creator_session) {
        holder->second.held.charge(resource::memory_bytes, cost::lease);
      }
    }
    make_room(to.leases.size(), 0);
  }
  unused_slots_from_ = slots.empty() ? 0 : *slots.rbegin() + 1;
  free_slots_.reserve(std::size_t{unused_slots_from_} * 2 + 16);
  for (std::uint32_t slot = 0; slot < unused_slots_from_; ++slot) {
    if (!slots.contains(slot)) {
      free_slots_.push_back(slot);
    }
  }
}

void domain::restore_opens(const saved_state& from) {
  const auto charge = [&](session_id id, const open_request& request) -> participant& {
    const auto at = sessions_.find(id);
    require(at != sessions_.end(), "an open belongs to no session");
    at->second.held.charge(resource::waiting_opens, 1);
    at->second.held.charge(resource::memory_bytes, cost::waiting_open + request.name.size());
    return at->second;
  };
  for (const saved_open& each : from.waiting) {
    require(each.id < next_waiting_ && each.request.deadline,
            "an open waits under a wrong number, or forever");
    require(waiting_.emplace(each.id, waiting_open{each.session, each.request}).second,
            "two opens wait under one number");
    charge(each.session, each.request).waiting.insert(each.id);
    waiting_by_deadline_.emplace(*each.request.deadline, each.id);
    name_waiters& same = waiting_by_name_[each.request.name];
    if (same.ids.empty()) {
      same.place.assign(1, each.request.name);
    }
    same.ids.insert(each.id);
  }
  for (const std::string& name : from.due) {
    const auto same = waiting_by_name_.find(name);
    if (same == waiting_by_name_.end()) {
      due_.push_back(name);  // its opens were cancelled; `work` drops it
      continue;
    }
    require(!same->second.place.empty(), "a name is due twice");
    due_.splice(due_.end(), same->second.place);
  }
  for (const saved_confirmation& each : from.confirming) {
    require(each.id < next_confirmation_, "a confirmation has a number that was not given out");
    require(
        confirming_
            .emplace(each.id,
                     waiting_confirmation{
                         each.session, each.request, each.generation, each.deadline, each.exporter})
            .second,
        "two confirmations have one number");
    charge(each.session, each.request).confirming.insert(each.id);
    confirming_by_deadline_.emplace(each.deadline, each.id);
    auto& all = confirming_by_generation_[each.generation];
    all.insert(each.id);
    make_room(0, all.size());
  }
}

void domain::restore_ends(const saved_state& from) {
  for (const saved_end& each : from.ended) {
    require(each.how <= static_cast<std::uint8_t>(end_kind::unfenced),
            "a session has ended in an unknown way");
    ended_session& to = ended_.emplace_back();
    to.session = each.session;
    to.pid = each.pid;
    to.how = static_cast<end_kind>(each.how);
    to.left.insert(each.left.begin(), each.left.end());
  }
  for (const saved_unkept& each : from.unkept) {
    unkept_.push_back({each.session, each.left});
  }
  // Otherwise a lease would never end.
  std::set<std::pair<session_id, gpushm::generation>> ending;
  for (const ended_session& each : ended_) {
    for (const gpushm::generation generation : each.left) {
      ending.emplace(each.session, generation);
    }
  }
  for (const auto& [generation, each] : segments_) {
    for (const lease& claim : each->leases) {
      require(sessions_.contains(claim.holder) || ending.contains({claim.holder, generation}),
              "a lease belongs to no session");
    }
  }
}

}  // namespace gpushm::core
