// SPDX-License-Identifier: Apache-2.0
// Session lifetime and event fan-out.
#include <algorithm>
#include <utility>

#include "base/segments/exporter_bound.hpp"
#include "core/domain.hpp"
#include "core/open_advice.hpp"

namespace gpushm::core {

namespace {

/// Upper bound of leases of an ended session that end in one turn: each may cause an event for
/// every subscription.
constexpr std::size_t max_leases_per_turn = 256;
constexpr std::size_t max_events_per_turn = 2'048;
/// The same of opens that wait: of one session, or for one exporter.
constexpr std::size_t max_opens_per_turn = 256;
/// Elements of an ended session's lists that one turn frees.
constexpr std::size_t max_freed_per_turn = 1'024;

}  // namespace

domain::participant& domain::find_session(session_id id) {
  const auto at = sessions_.find(id);
  if (at == sessions_.end()) {
    throw error(errc::protocol_error, {}, {}, "the session has sent no Hello", "send Hello first");
  }
  return at->second;
}

charges domain::charges_of(const peer& peer) {
  core::principal payer = peer.principal;
  if (payer.key.empty()) {
    payer = peer.uid_known ? core::principal{"uid " + std::to_string(peer.uid), true}
                           : core::principal{"processes with an unknown uid", true};
  }
  const auto uid = peer.uid_known ? std::optional(peer.uid) : std::nullopt;
  return {budget_, budget_.account_of(payer, uid), is_owner(peer)};
}

charges domain::charges_of_connection(const peer& peer) {
  charges held = charges_of(peer);
  held.take(resource::connections, 1);
  held.take(resource::descriptors, limits_.descriptors_per_session);
  held.take(resource::memory_bytes, cost::connection);
  return held;
}

void domain::check_room_for(const peer& peer) {
  static_cast<void>(charges_of_connection(peer));
}

void domain::connect(session_id session,
                     const peer& identity,
                     std::shared_ptr<core::payload> payload) {
  participant joined;
  joined.who = std::make_shared<const peer>(identity);
  joined.payload = std::move(payload);
  joined.is_operator = is_owner(identity);
  joined.held = charges_of_connection(identity);
  joined.over.emplace_back();
  sessions_.emplace(session, std::move(joined));
  next_session_ = std::max(next_session_, session + 1);
  note(record_kind::numbers);
  note(record_kind::session, session);
}

payload* domain::payload_of(session_id session) const noexcept {
  const auto at = sessions_.find(session);
  return at == sessions_.end() ? nullptr : at->second.payload.get();
}

void domain::set_session_payload(session_id session, std::shared_ptr<core::payload> payload) {
  sessions_.at(session).payload = std::move(payload);
}

const peer& domain::peer_of(session_id session) const {
  return *sessions_.at(session).who;
}

charges domain::new_charges(session_id session) {
  const participant& of = find_session(session);
  return {budget_, of.held.who(), of.is_operator};
}

charges domain::new_charges(const segment& segment) {
  return {budget_, segment.held->who(), false};
}

void domain::mute(session_id session) {
  const auto at = sessions_.find(session);
  if (at == sessions_.end() || at->second.subscriptions == 0) {
    return;
  }
  charges& held = at->second.held;
  std::erase_if(subscriptions_, [&](const subscription& entry) {
    if (entry.session != session) {
      return false;
    }
    held.release(resource::subscriptions, 1);
    held.release(resource::memory_bytes, cost::subscription + entry.prefix.size());
    note(record_kind::subscription, session, entry.id);
    return true;
  });
  at->second.subscriptions = 0;
}

bool domain::stop_some(session_id id) {
  const auto at = sessions_.find(id);
  if (at == sessions_.end()) {
    return false;
  }
  participant& participant = at->second;
  const bool resumes = resume_some(id);
  for (std::size_t left = max_opens_per_turn; left != 0 && !participant.waiting.empty(); --left) {
    static_cast<void>(take_waiting(*participant.waiting.begin()));
  }
  for (std::size_t left = max_opens_per_turn; left != 0 && !participant.confirming.empty();
       --left) {
    static_cast<void>(take_confirmation(*participant.confirming.begin()));
  }
  return resumes || !participant.waiting.empty() || !participant.confirming.empty();
}

/// Ends everything that could send to the session. It has everything of the one that it resumes.
void domain::stop_requests(session_id id, participant& participant) {
  while (resume_some(id)) {
  }
  while (!participant.waiting.empty()) {
    static_cast<void>(take_waiting(*participant.waiting.begin()));
  }
  while (!participant.confirming.empty()) {
    static_cast<void>(take_confirmation(*participant.confirming.begin()));
  }
  mute(id);
}

bool domain::lose(session_id id) {
  const auto at = sessions_.find(id);
  if (at == sessions_.end() || at->second.lost) {
    return at != sessions_.end();
  }
  participant& gone = at->second;
  stop_requests(id, gone);
  if (gone.leased.empty() && gone.created.empty()) {
    disconnect(id, false);
    return false;
  }
  gone.held.release(resource::connections, 1);
  const std::uint64_t kept = limits_.descriptors_per_ending_session;
  const std::uint64_t had = gone.held.held(resource::descriptors);
  gone.held.release(resource::descriptors, had - std::min(had, kept));
  gone.lost = participant::loss{now_};
  note(record_kind::session, id);
  ++ending_sessions_;
  return true;
}

void domain::disconnect(session_id id, bool clean) {
  const auto at = sessions_.find(id);
  if (at == sessions_.end() || (at->second.lost && at->second.lost->is_resumed)) {
    return;
  }
  stop_requests(id, at->second);
  // The rest of its leases end in `work`.
  note(record_kind::session, id);
  auto node = sessions_.extract(at);
  participant& gone = node.mapped();
  ending_sessions_ -= gone.lost ? 1U : 0U;
  for (const resource resource : {resource::connections, resource::descriptors}) {
    gone.held.release(resource, gone.held.held(resource));
  }
  ended_session& over = gone.over.front();
  over.session = id;
  over.who = std::move(gone.who);
  over.how = clean ? end_kind::goodbye : end_kind::death;
  over.left = std::move(gone.leased);
  over.created = std::move(gone.created);
  over.building = std::move(gone.building);
  over.held = std::move(gone.held);
  over.unpublished = std::move(gone.unpublished);
  over.awaiting_reply = std::move(gone.awaiting_reply);
  over.queued_questions = std::move(gone.queued_questions);
  for (std::size_t some = leases_per_turn(); some != 0 && over.has_leases(); --some) {
    if (!end_next_lease(over)) {
      break;
    }
  }
  const bool has_leases = over.has_leases();
  if (has_leases) {
    note(record_kind::end, id);
  }
  if (has_leases || over.free_some()) {
    ended_.splice(ended_.end(), gone.over);
  }
}

/// Without a comparison: keys of `unpublished` may be dangling.
bool domain::ended_session::free_some() noexcept {
  std::size_t some = max_freed_per_turn;
  const auto free = [&](auto& list) {
    for (; some != 0 && !list.empty(); --some) {
      list.erase(list.begin());
    }
    return !list.empty();
  };
  return free(unpublished) || free(awaiting_reply) || free(queued_questions);
}

std::size_t domain::leases_per_turn() const noexcept {
  return std::clamp<std::size_t>(
      max_events_per_turn / (subscriptions_.size() + 1), 1, max_leases_per_turn);
}

bool domain::work() {
  if (!due_.empty()) {
    segment* const published = published_of(due_.front());
    if (published == nullptr || !wake_some(due_.front(), *published)) {
      const auto same = waiting_by_name_.find(due_.front());
      if (same == waiting_by_name_.end()) {
        due_.pop_front();
      } else {
        same->second.place.splice(same->second.place.end(), due_, due_.begin());
      }
    }
  }
  if (!to_refuse_.empty() && !refuse_unconfirmed(to_refuse_.front(), end_kind::unfenced)) {
    const auto of = segments_.find(to_refuse_.front());
    to_refuse_.pop_front();
    if (of != segments_.end()) {
      free_if_unused(*of->second);
    }
  }
  if (!lost_devices_.empty()) {
    lose_some();
  }
  work_on_versions();
  // A bounded number of leases, of both queues.
  const std::size_t leases = leases_per_turn();
  const std::size_t each = ended_.empty() || unkept_.empty() ? leases : (leases + 1) / 2;
  for (std::size_t some = each; some != 0 && !ended_.empty(); --some) {
    ended_session& gone = ended_.front();
    if (gone.has_leases()) {
      if (!end_next_lease(gone)) {
        break;
      }
      if (gone.has_leases()) {
        continue;
      }
    }
    note(record_kind::end, gone.session);
    if (gone.free_some()) {
      break;
    }
    ended_.pop_front();
  }
  for (std::size_t some = each; some != 0 && !unkept_.empty(); --some) {
    unkept& unkept = unkept_.front();
    if (!unkept.left.empty() && !release_next(unkept)) {
      break;
    }
    if (unkept.left.empty()) {
      unkept_.pop_front();
    }
  }
  return has_work();
}

/// Returns false if it must wait for capacity for its effects.
bool domain::end_next_lease(ended_session& gone) {
  if (!gone.building.empty()) {
    if (!has_room_for_moves()) {
      return false;
    }
    versions_.fail(*gone.building.begin(), next_generation_);
    gone.building.erase(gone.building.begin());
    settle_versions();
    return true;
  }
  const gpushm::generation next = gone.left.empty() ? *gone.created.begin() : *gone.left.begin();
  const auto entry = segments_.find(next);
  if (entry == segments_.end()) {
    gone.left.erase(next);
    gone.created.erase(next);
    return true;
  }
  const std::shared_ptr<segment> segment = entry->second;
  if (base::ends_with_creator(segment->backend) && segment->creator_session == gone.session) {
    // Its name is taken until then, and no more opens begin to wait: the session has ended.
    if (refuse_unconfirmed(segment->generation, gone.how)) {
      return false;
    }
  }
  if (!has_room_to_end(*segment)) {
    return false;
  }
  gone.left.erase(next);
  gone.created.erase(next);
  end_lease_of_ended_session(gone.session, gone.who, gone.how, *segment);
  // Only if the name is still this segment's: a new one may be next in this queue.
  if (!segment->removed) {
    wake_after_fence(segment->name);
  }
  return true;
}

bool domain::release_next(unkept& unkept) {
  const auto [generation, count] = unkept.left.back();
  const auto segment = segments_.find(generation);
  if (segment != segments_.end() && !has_room_to_end(*segment->second)) {
    return false;
  }
  unkept.left.pop_back();
  note(record_kind::unkept, unkept.session, unkept.left.size() / unkept::part_size);
  release(unkept.session, generation, count);
  return true;
}

void domain::end_lease_of_ended_session(session_id id,
                                        const actor& actor,
                                        end_kind end,
                                        segment& segment) {
  const bool created = segment.creator_session == id;
  if (end == end_kind::death && segment.published) {
    // Leases of other sessions.
    const auto left = std::count_if(segment.leases.begin(),
                                    segment.leases.end(),
                                    [&](const lease& l) { return l.holder != id; });
    emit(event_kind::peer_died, segment, static_cast<std::size_t>(left), actor->pid, actor);
  }
  const auto own = std::find_if(
      segment.leases.begin(), segment.leases.end(), [&](const lease& l) { return l.holder == id; });
  const bool held = own != segment.leases.end();
  if (held && !created) {
    end_lease(id, segment, own->count, false, actor);
    return;
  }
  segment.creator_session = 0;
  if (segment.is_versioned) {
    versions_.fail_of(segment.generation, next_generation_);
    settle_versions();
  }
  note(record_kind::segment, segment.generation);
  note(record_kind::lease, segment.generation, id);
  if (held) {
    erase_lease(segment, own);
  }
  if (base::ends_with_creator(segment.backend)) {
    end_with_exporter(segment, end, actor);
  } else if ((end != end_kind::goodbye || segment.backend == backend::signals) &&
             !segment.removed &&
             is_in_use(segment)) {  // no process signals the timelines of such a page now
    segment.exporter_gone = true;
    show(segment);
  }
  free_if_unused(segment);
}

/// Existing mappings stay valid; new opens fail, and the name is free for another segment.
void domain::end_with_exporter(segment& segment, end_kind end, const actor& actor) {
  const bool clean = end == end_kind::goodbye;
  if (!segment.removed) {
    if (!clean && segment.published) {
      remember_dead(segment.name);
    }
    unname(segment, !clean);
    if (segment.published) {
      emit(event_kind::removed, segment, actor);
    }
  }
  if (refuse_unconfirmed(segment.generation, end)) {  // only of `unfence`
    refuse_later(segment.generation);
  }
}

/// Some of the opens that wait for the exporter of the segment, which has ended. Returns true if
/// more are left.
bool domain::refuse_unconfirmed(gpushm::generation generation, end_kind end) {
  std::size_t left = max_opens_per_turn - std::min(max_opens_per_turn, effects_.replies.size());
  for (;; --left) {
    const auto confirming_by_generation = confirming_by_generation_.find(generation);
    if (confirming_by_generation == confirming_by_generation_.end() || left == 0) {
      return confirming_by_generation != confirming_by_generation_.end();
    }
    const waiting_confirmation waiting =
        take_confirmation(*confirming_by_generation->second.ids.begin());
    refuse_with(waiting.session, waiting.request, [&] {
      return before_timeout(
          end == end_kind::goodbye ? no_such_segment(waiting.request.name) : exporter_died(),
          waiting.request);
    });
  }
}

/// In `work`. No more opens begin to wait for it.
void domain::refuse_later(gpushm::generation generation) noexcept {
  std::list<gpushm::generation>& place = confirming_by_generation_.find(generation)->second.place;
  to_refuse_.splice(to_refuse_.end(), place);
}

void domain::subscribe(session_id id, std::uint64_t number, std::string prefix) {
  participant& subscriber = find_session(id);
  if (subscriber.subscriptions >= limits_.max_subscriptions) {
    throw error(
        errc::too_many_requests,
        {},
        {},
        std::to_string(subscriber.subscriptions) + " subscriptions on this connection, the limit",
        "subscribe once, to a shorter prefix");
  }
  const bool taken =
      std::any_of(subscriptions_.begin(), subscriptions_.end(), [&](const subscription& entry) {
        return entry.session == id && entry.id == number;
      });
  if (taken || prefix.size() > max_name_bytes) {
    throw error(
        errc::invalid_argument,
        {},
        {},
        taken ? "the request id is already used by a subscription" : "the prefix is too long",
        "use a new request id, and a prefix of at most 255 bytes");
  }
  make_room_to_record(subscriptions_.size() + 1);  // sessions of one process are muted at once
  const std::uint64_t memory = cost::subscription + prefix.size();
  subscriber.held.take(resource::subscriptions, 1);
  try {
    subscriber.held.take(resource::memory_bytes, memory);
    subscriptions_.push_back({id, number, std::move(prefix), next_place_});
  } catch (const std::bad_alloc&) {
    subscriber.held.release(resource::subscriptions, 1);
    subscriber.held.release(resource::memory_bytes, memory);
    throw;
  } catch (...) {
    subscriber.held.release(resource::subscriptions, 1);
    throw;
  }
  ++next_place_;
  ++subscriber.subscriptions;
  note(record_kind::subscription, id, number);
}

void domain::unsubscribe(session_id id, std::uint64_t number) {
  participant& subscriber = find_session(id);
  const auto at =
      std::find_if(subscriptions_.begin(), subscriptions_.end(), [&](const subscription& entry) {
        return entry.session == id && entry.id == number;
      });
  if (at == subscriptions_.end()) {
    return;
  }
  subscriber.held.release(resource::subscriptions, 1);
  subscriber.held.release(resource::memory_bytes, cost::subscription + at->prefix.size());
  subscriptions_.erase(at);
  note(record_kind::subscription, id, number);
  --subscriber.subscriptions;
}

actor domain::actor_of(session_id session) const noexcept {
  const auto at = sessions_.find(session);
  return at == sessions_.end() ? nullptr : at->second.who;
}

void domain::emit(event_kind kind, const segment& segment, const actor& actor) {
  emit(kind, segment, segment.leases.size(), actor ? actor->pid : 0, actor);
}

void domain::emit(event_kind kind,
                  const segment& segment,
                  std::size_t leases,
                  std::int32_t peer_pid,
                  const actor& actor) {
  if (subscriptions_.empty()) {
    return;
  }
  if (!std::exchange(effects_.has_numbered_changes, true)) {  // once is enough
    note(record_kind::numbers);
  }
  effects_.changes.push_back({kind,
                              segment.shared_from_this(),
                              static_cast<std::uint32_t>(leases),
                              peer_pid,
                              0,
                              actor,
                              next_change_++});
}

}  // namespace gpushm::core
