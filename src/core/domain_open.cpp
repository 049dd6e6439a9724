// SPDX-License-Identifier: Apache-2.0
// Leases, and opens that wait for names.
#include <algorithm>
#include <utility>

#include "base/segments/exporter_bound.hpp"
#include "base/segments/versioned_names.hpp"
#include "core/domain.hpp"
#include "core/open_advice.hpp"

namespace gpushm::core {

namespace {

bool is_another(const open_request& request, const segment& segment) {
  return request.generation != 0 && request.generation != segment.generation;
}

error replaced() {
  return {errc::gone_or_replaced,
          {},
          {},
          "the exporter now shares other memory under this name",
          "use the exporter's newest ticket"};
}

}  // namespace

namespace {

/// Upper bound of opens that get their reply in one turn when one event ends many waits.
constexpr std::size_t opens_per_turn = 64;
/// The same when many names are woken.
constexpr std::size_t replies_per_turn = 256;
/// Waiting opens that a cancellation ends in one turn: more than one open_many has.
constexpr std::size_t cancelled_per_turn = 1'024;
/// Objects that an answered open changes, and the questions of an exporter.
constexpr std::size_t records_per_open = 4;

/// Charges a waiting open. Throws as `charges::take`; then nothing is charged.
void charge_waiting_open(charges& held, const open_request& request) {
  held.take(resource::waiting_opens, 1);
  try {
    held.take(resource::memory_bytes, cost::waiting_open(request.name.size()));
  } catch (...) {
    held.release(resource::waiting_opens, 1);
    throw;
  }
}

void release_waiting_open(charges& held, const open_request& request) noexcept {
  held.release(resource::waiting_opens, 1);
  held.release(resource::memory_bytes, cost::waiting_open(request.name.size()));
}

}  // namespace

void domain::take_lease(session_id session, segment& segment) {
  const auto at = std::find_if(segment.leases.begin(),
                               segment.leases.end(),
                               [&](const lease& held) { return held.holder == session; });
  note(record_kind::lease, segment.generation, session);
  if (at != segment.leases.end()) {
    ++at->count;
    return;
  }
  participant& holder = find_session(session);
  // Grow geometrically: growing by one would copy all leases at each open.
  if (segment.leases.size() == segment.leases.capacity()) {
    segment.leases.reserve(segment.leases.size() * 2 + 1);
  }
  make_room(segment.leases.capacity(), 0);
  // The creator's is charged with the segment.
  const std::uint64_t memory = session == segment.creator_session ? 0 : cost::lease;
  holder.held.take(resource::memory_bytes, memory);
  try {
    holder.leased.insert(segment.generation);
  } catch (...) {
    holder.held.release(resource::memory_bytes, memory);
    throw;
  }
  segment.leases.push_back({session, 1});
  if (segment.is_versioned && segment.leases.size() == 1) {
    versions_.hold(segment.generation);
  }
  ++lease_count_;
  if (session != segment.creator_session) {
    emit(event_kind::opened, segment, holder.who);
  }
}

void domain::erase_lease(segment& segment, std::vector<lease>::iterator at) noexcept {
  segment.leases.erase(at);
  if (segment.is_versioned && segment.leases.empty()) {
    versions_.release(segment.generation);
  }
  --lease_count_;
}

void domain::end_lease(session_id session,
                       segment& segment,
                       std::uint32_t count,
                       bool never_mapped,
                       const actor& actor) {
  const auto at = std::find_if(segment.leases.begin(),
                               segment.leases.end(),
                               [&](const lease& held) { return held.holder == session; });
  if (at == segment.leases.end()) {
    return;
  }
  note(record_kind::lease, segment.generation, session);
  at->count -= std::min(at->count, count);
  at->used = at->used || !never_mapped;
  if (at->count != 0) {
    return;
  }
  segment.used = segment.used || (at->used && session != segment.creator_session);
  note(record_kind::segment, segment.generation);
  erase_lease(segment, at);
  if (const auto holder = sessions_.find(session); holder != sessions_.end()) {
    holder->second.leased.erase(segment.generation);
    if (session != segment.creator_session) {  // the creator's is charged with the segment
      holder->second.held.release(resource::memory_bytes, cost::lease);
    }
  }
  const bool others =
      std::any_of(segment.leases.begin(), segment.leases.end(), [&](const lease& held) {
        return held.holder != segment.creator_session;
      });
  // Failed imports cause no event for producers that wait for their consumers to finish.
  if (segment.published && !others && session != segment.creator_session &&
      std::exchange(segment.used, false)) {
    emit(event_kind::released, segment, actor ? actor : actor_of(session));
  }
  if (base::ends_with_creator(segment.backend) && session == segment.creator_session &&
      !segment.removed) {
    unname(segment);
    if (segment.published) {
      emit(event_kind::removed, segment, actor ? actor : actor_of(session));
    }
  }
  free_if_unused(segment);
}

void domain::release(session_id session,
                     gpushm::generation generation,
                     std::uint32_t count,
                     bool never_mapped) {
  if (const auto at = segments_.find(generation); at != segments_.end()) {
    end_lease(session, *at->second, count, never_mapped);
  }
}

void domain::grant_or_refuse(session_id session, const open_request& request, segment& segment) {
  or_refuse(session, request, [&] {
    if (is_another(request, segment)) {
      throw replaced();
    }
    if (request.expected_size_bytes != 0 && request.expected_size_bytes != segment.size_bytes) {
      throw error(errc::size_mismatch,
                  {},
                  {},
                  "the segment has " + std::to_string(segment.size_bytes) +
                      " bytes, not the expected " + std::to_string(request.expected_size_bytes),
                  "expect the size that `gpushm stat` shows");
    }
    if (!base::is_only_fetched(segment.backend)) {
      take_lease(session, segment);
    }
    reply(session, request, segment);
  });
}

void domain::open(session_id session, const open_request& request) {
  or_refuse(session, request, [&] {
    base::check_segment_name({}, request.name);
    static_cast<void>(find_session(session));
    segment* const published = published_of(request.name);
    const bool must_wait = published != nullptr && waits_for_fence(*published);
    if (must_wait && !request.deadline) {
      throw writer_ending(*published);
    }
    if (published != nullptr && !must_wait) {
      if (base::is_exporter_bound(published->backend)) {
        confirm_with_exporter(session, request, *published, request.asked);
      } else {
        grant_or_refuse(session, request, *published);
      }
      return;
    }
    if (!request.deadline) {
      throw before_timeout(no_such_segment(request.name), request);
    }
    wait(session, request);
  });
}

// ---- confirmation by the exporter ----

void domain::confirm_with_exporter(session_id session,
                                   open_request request,
                                   const segment& segment,
                                   time_point since) {
  if (is_another(request, segment)) {
    throw replaced();
  }
  participant& waiter = find_session(session);
  if (waiter.confirming.size() >= limits_.max_pending_opens) {
    throw error(errc::too_many_requests,
                {},
                {},
                std::to_string(waiter.confirming.size()) +
                    " opens of this connection wait for exporters, the limit",
                "open fewer segments at once");
  }
  const auto creator = sessions_.find(segment.creator_session);
  if (creator == sessions_.end()) {  // ended; its segments are freed in `work`
    throw before_timeout(exporter_died(), request);
  }
  participant& exporter = creator->second;
  const std::uint64_t id = next_confirmation_++;
  const time_point deadline = since + limits_.confirm_timeout;
  effects_.waits.reserve(effects_.waits.size() + 1);
  effects_.questions.reserve(effects_.questions.size() + 1);
  charge_waiting_open(waiter.held, request);
  const bool waited_before = std::exchange(request.waits, true);
  try {
    confirming_.emplace(
        id,
        waiting_confirmation{
            session, request, segment.generation, deadline, segment.creator_session});
    deadlines_.add({deadline, deadline_queue::kind::confirmation, id});
    confirming_opens& same = confirming_by_generation_[segment.generation];
    if (same.ids.empty()) {
      same.place.assign(1, segment.generation);
    }
    same.ids.insert(id);
    make_room(0, same.ids.size());  // all are refused if the exporter ends
    make_room_to_record(same.ids.size() + waiter.waiting.size() + waiter.confirming.size());
    waiter.confirming.insert(id);
    exporter.queued_questions.insert(id);
  } catch (...) {
    waiter.confirming.erase(id);
    deadlines_.erase({deadline, deadline_queue::kind::confirmation, id});
    if (const auto confirming_by_generation = confirming_by_generation_.find(segment.generation);
        confirming_by_generation != confirming_by_generation_.end()) {
      confirming_by_generation->second.ids.erase(id);
      if (confirming_by_generation->second.ids.empty()) {
        confirming_by_generation_.erase(confirming_by_generation);
      }
    }
    confirming_.erase(id);
    release_waiting_open(waiter.held, request);
    throw;
  }
  note(record_kind::numbers);
  note(record_kind::confirmation, id);
  if (!waited_before) {
    const bool fits =
        request.expected_size_bytes == 0 || request.expected_size_bytes == segment.size_bytes;
    effects_.waits.push_back(
        {session, request.request, request.index, fits ? segment.shared_from_this() : nullptr});
  }
  send_questions(segment.creator_session);
}

/// Sends an exporter only as many questions as fit into its socket: it may be busy or stopped.
/// Unanswered questions keep their place, so that a stopped exporter does not get more and more.
/// Questions that cannot be sent for lack of memory are sent at the next call or time out.
void domain::send_questions(session_id exporter) noexcept {
  const auto at = sessions_.find(exporter);
  if (at == sessions_.end()) {
    return;
  }
  participant& to = at->second;
  while (!to.queued_questions.empty() && to.awaiting_reply.size() < limits_.max_confirmations) {
    const std::uint64_t id = *to.queued_questions.begin();
    const auto question = confirming_.find(id);
    if (question == confirming_.end()) {
      to.queued_questions.erase(id);
      continue;
    }
    try {
      effects_.questions.reserve(effects_.questions.size() + 1);
    } catch (const std::bad_alloc&) {
      return;
    }
    to.awaiting_reply.insert(to.queued_questions.extract(to.queued_questions.begin()));
    if (!std::exchange(question->second.sent, true)) {
      note(record_kind::confirmation, id);
    }
    effects_.questions.push_back({exporter, id, question->second.generation});
  }
}

void domain::resend_questions(session_id exporter) noexcept {
  if (const auto at = sessions_.find(exporter); at != sessions_.end()) {
    participant& to = at->second;
    for (const std::uint64_t id : to.awaiting_reply) {
      if (const auto question = confirming_.find(id); question != confirming_.end()) {
        question->second.sent = false;
        note(record_kind::confirmation, id);
      }
    }
    to.queued_questions.merge(to.awaiting_reply);
    send_questions(exporter);
  }
}

domain::waiting_confirmation domain::take_confirmation(std::uint64_t id) {
  const auto at = confirming_.find(id);
  waiting_confirmation taken = std::move(at->second);
  note(record_kind::confirmation, id);
  confirming_.erase(at);
  deadlines_.erase({taken.deadline, deadline_queue::kind::confirmation, id});
  const auto confirming_by_generation = confirming_by_generation_.find(taken.generation);
  confirming_by_generation->second.ids.erase(id);
  if (confirming_by_generation->second.ids.empty()) {
    confirming_by_generation_.erase(confirming_by_generation);
  }
  if (const auto waiter = sessions_.find(taken.session); waiter != sessions_.end()) {
    waiter->second.confirming.erase(id);
    release_waiting_open(waiter->second.held, taken.request);
  }
  // Its charge is returned, so a silent exporter's queue must not keep it. A question that was sent
  // keeps its place in `awaiting_reply`, which is bounded.
  if (const auto exporter = sessions_.find(taken.exporter); exporter != sessions_.end()) {
    exporter->second.queued_questions.erase(id);
  }
  return taken;
}

void domain::confirmed(session_id exporter, std::uint64_t confirmation, verdict result) {
  if (const auto who = sessions_.find(exporter); who != sessions_.end()) {
    who->second.awaiting_reply.erase(confirmation);
  }
  const auto at = confirming_.find(confirmation);
  if (at == confirming_.end()) {
    return;
  }
  const auto entry = segments_.find(at->second.generation);
  if (entry != segments_.end() && entry->second->creator_session != exporter) {
    return;  // not the exporter of this segment
  }
  const waiting_confirmation waiting = take_confirmation(confirmation);
  if (entry == segments_.end() || entry->second->removed) {
    // The name may belong to another segment, or the open may wait for it.
    open(waiting.session, waiting.request);
    return;
  }
  segment& segment = *entry->second;
  if (result == verdict::unchanged) {
    grant_or_refuse(waiting.session, waiting.request, segment);
    return;
  }
  refuse_with(waiting.session, waiting.request, [&] {
    return error(errc::gone_or_replaced,
                 {},
                 {},
                 result == verdict::changed
                     ? "its exporter has freed or replaced the memory without unshare"
                     : "its exporter no longer shares this memory",
                 "unshare before freeing, and share the new memory");
  });
  // Its memory is no longer valid.
  unname(segment);
  emit(event_kind::removed, segment, actor_of(exporter));
  free_if_unused(segment);
}

void domain::question_not_sent(const question& question) {
  if (const auto exporter = sessions_.find(question.exporter); exporter != sessions_.end()) {
    exporter->second.awaiting_reply.erase(question.confirmation);
  }
  if (confirming_.contains(question.confirmation)) {
    const waiting_confirmation open = take_confirmation(question.confirmation);
    refuse(open.session, open.request, std::nullopt);
  }
}

// ---- waiting opens ----

void domain::wait(session_id session, open_request request) {
  participant& waiter = find_session(session);
  if (waiter.waiting.size() >= limits_.max_pending_opens) {
    throw error(errc::too_many_requests,
                {},
                {},
                std::to_string(waiter.waiting.size()) +
                    " opens of this connection wait for their names, the limit",
                "wait for fewer names at once");
  }
  effects_.waits.reserve(effects_.waits.size() + 1);
  // All may be cancelled at once.
  make_room_to_record(waiter.waiting.size() + waiter.confirming.size() + 1);
  charge_waiting_open(waiter.held, request);
  const bool waited_before = std::exchange(request.waits, true);
  const std::uint64_t id = next_waiting_++;
  try {
    waiting_.emplace(id, waiting_open{session, request});
    waiter.waiting.insert(id);
    deadlines_.add({*request.deadline, deadline_queue::kind::waiting, id});
    name_waiters& same = waiting_by_name_[request.name];
    if (same.ids.empty()) {
      same.place.assign(1, request.name);
    }
    same.ids.insert(id);
  } catch (...) {  // out of memory half-way
    if (const auto by_name = waiting_by_name_.find(request.name);
        by_name != waiting_by_name_.end() && by_name->second.ids.empty()) {
      waiting_by_name_.erase(by_name);
    }
    deadlines_.erase({*request.deadline, deadline_queue::kind::waiting, id});
    waiter.waiting.erase(id);
    waiting_.erase(id);
    release_waiting_open(waiter.held, request);
    throw;
  }
  note(record_kind::numbers);
  note(record_kind::waiting, id);
  if (!waited_before) {
    effects_.waits.push_back({session, request.request, request.index});
  }
}

bool domain::cancel(session_id session,
                    std::uint64_t request,
                    std::optional<std::uint32_t> index) noexcept {
  const auto entry = sessions_.find(session);
  if (entry == sessions_.end()) {
    return false;
  }
  bool any = false;
  const auto take_all = [&](const std::set<std::uint64_t>& ids, const auto& opens, auto&& take) {
    for (auto at = ids.begin(); at != ids.end();) {
      const std::uint64_t id = *at++;  // `take` erases it
      const open_request& waits = opens.find(id)->second.request;
      if (waits.request == request && (!index || waits.index == *index)) {
        take(id);
        any = true;
      }
    }
  };
  take_all(entry->second.waiting, waiting_, [&](std::uint64_t id) {
    static_cast<void>(take_waiting(id));
  });
  take_all(entry->second.confirming, confirming_, [&](std::uint64_t id) {
    static_cast<void>(take_confirmation(id));
  });
  return any;
}

bool domain::cancel_some(session_id session, std::uint64_t request) noexcept {
  const auto entry = sessions_.find(session);
  if (entry == sessions_.end()) {
    return false;
  }
  participant& waiter = entry->second;
  const auto is_of_request = [&](const auto& opens) {
    return [&](std::uint64_t id) { return opens.find(id)->second.request.request == request; };
  };
  const auto is_waiting = is_of_request(waiting_);
  const auto is_confirming = is_of_request(confirming_);
  if (waiter.waiting.size() + waiter.confirming.size() <= cancelled_per_turn ||
      static_cast<std::size_t>(
          std::count_if(waiter.waiting.begin(), waiter.waiting.end(), is_waiting) +
          std::count_if(waiter.confirming.begin(), waiter.confirming.end(), is_confirming)) <=
          cancelled_per_turn) {
    return false;
  }
  std::size_t left = cancelled_per_turn;
  const auto take_some = [&](const std::set<std::uint64_t>& ids, const auto& is, auto&& take) {
    for (auto at = ids.begin(); at != ids.end() && left != 0;) {
      const std::uint64_t id = *at++;  // `take` erases it
      if (is(id)) {
        take(id);
        --left;
      }
    }
  };
  take_some(
      waiter.waiting, is_waiting, [&](std::uint64_t id) { static_cast<void>(take_waiting(id)); });
  take_some(waiter.confirming, is_confirming, [&](std::uint64_t id) {
    static_cast<void>(take_confirmation(id));
  });
  return true;
}

domain::waiting_open domain::take_waiting(std::uint64_t id) {
  const auto at = waiting_.find(id);
  waiting_open taken = std::move(at->second);
  note(record_kind::waiting, id);
  waiting_.erase(at);
  const auto by_name = waiting_by_name_.find(taken.request.name);
  by_name->second.ids.erase(id);
  if (by_name->second.ids.empty()) {
    waiting_by_name_.erase(by_name);
  }
  deadlines_.erase({*taken.request.deadline, deadline_queue::kind::waiting, id});
  if (const auto waiter = sessions_.find(taken.session); waiter != sessions_.end()) {
    waiter->second.waiting.erase(id);
    release_waiting_open(waiter->second.held, taken.request);
  }
  return taken;
}

void domain::wake(segment& published) {
  if (!wake_some(published.name, published)) {
    return;
  }
  std::list<std::string>& place = waiting_by_name_.find(published.name)->second.place;
  due_.splice(due_.end(), place);
}

/// True if there is capacity for the replies of one turn, their events and the questions to an
/// exporter.
bool domain::has_room_to_wake() const noexcept {
  const auto has = [](const auto& room, std::size_t more) {
    return room.capacity() - room.size() >= more;
  };
  return effects_.replies.size() < replies_per_turn && has(effects_.replies, opens_per_turn) &&
         has(effects_.changes, opens_per_turn) &&
         has(effects_.questions, limits_.max_confirmations) &&
         has_room_to_record(opens_per_turn * records_per_open + limits_.max_confirmations);
}

/// Answers some opens that wait for the name. Returns true if more are left.
bool domain::wake_some(std::string_view name, segment& published) {
  if (waits_for_fence(published)) {
    return false;
  }
  const bool now = has_room_to_wake();
  for (std::size_t left = now ? opens_per_turn : 0; left != 0; --left) {
    const auto at = waiting_by_name_.find(name);
    if (at == waiting_by_name_.end()) {
      return false;
    }
    const waiting_open woken = take_waiting(*at->second.ids.begin());
    if (!base::is_exporter_bound(published.backend)) {
      grant_or_refuse(woken.session, woken.request, published);
      continue;
    }
    // The segment may have been reserved long ago; the open may take until its own deadline.
    or_refuse(woken.session, woken.request, [&] {
      confirm_with_exporter(woken.session, woken.request, published, *woken.request.deadline);
    });
  }
  return waiting_by_name_.contains(name);
}

// ---- deadlines ----

void domain::tick() {
  for (std::size_t left = opens_per_turn; left != 0; --left) {
    const auto next = deadlines_.due(now_);
    if (!next) {
      return;
    }
    switch (next->what) {
      case deadline_queue::kind::waiting:
        expire_waiting(next->number);
        break;
      case deadline_queue::kind::confirmation:
        expire_confirmation(next->number);
        break;
    }
  }
}

void domain::expire_waiting(std::uint64_t id) {
  const waiting_open expired = take_waiting(id);
  const segment* const published = published_of(expired.request.name);
  refuse_with(expired.session, expired.request, [&] {
    return published != nullptr && waits_for_fence(*published)
               ? writer_ending(*published)
               : after_timeout(no_such_segment(expired.request.name));
  });
}

void domain::expire_confirmation(std::uint64_t id) {
  const waiting_confirmation expired = take_confirmation(id);
  refuse_with(expired.session, expired.request, [] {
    return error(errc::timed_out,
                 {},
                 {},
                 "the process that shares this memory does not answer",
                 "check whether it is stopped or overloaded");
  });
}

}  // namespace gpushm::core
