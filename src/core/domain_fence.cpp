// SPDX-License-Identifier: Apache-2.0
// Sessions whose connection ended without a goodbye, until their fence is reached.
#include <algorithm>
#include <iterator>
#include <utility>

#include "base/segments/exporter_bound.hpp"
#include "base/segments/versioned_names.hpp"
#include "core/domain.hpp"

namespace gpushm::core {

namespace {

/// Upper bound of segments and questions that a session takes from the one that it resumes, in one
/// turn: each changes four objects at most.
constexpr std::size_t max_resumed_per_turn = 256;
/// The same of sessions whose leases one `unfence` ends.
constexpr std::size_t max_unfenced_per_turn = 256;

}  // namespace

const domain::participant::loss* domain::loss_of(session_id session) const {
  const auto at = sessions_.find(session);
  return at == sessions_.end() || !at->second.lost ? nullptr : &*at->second.lost;
}

bool domain::is_ending(session_id session) const {
  return loss_of(session) != nullptr;
}

void domain::set_fence_wait(session_id session, fence_wait wait) {
  if (const auto at = sessions_.find(session); at != sessions_.end() && at->second.lost) {
    at->second.lost->waits_for = wait;
    note(record_kind::session, session);
  }
}

/// True if every process that leases it may be dying, or may have died while its GPU work
/// continues: its contents are not final yet. For exporter-bound memory only the exporter matters.
bool domain::waits_for_fence(const segment& segment) const {
  if (ending_sessions_ == 0) {
    return false;
  }
  if (base::ends_with_creator(segment.backend)) {
    return is_ending(segment.creator_session);
  }
  return !segment.leases.empty() &&
         std::all_of(segment.leases.begin(), segment.leases.end(), [&](const lease& held) {
           return is_ending(held.holder);
         });
}

std::optional<ending_leases> domain::ending_of(const segment& segment) const {
  if (ending_sessions_ == 0) {
    return std::nullopt;
  }
  ending_leases result;
  const auto add = [&](session_id holder) {
    const participant::loss* const lost = loss_of(holder);
    if (lost == nullptr) {
      return;
    }
    if (result.count == 0 || lost->since < result.since) {
      result = {
          result.count, sessions_.find(holder)->second.who->pid, lost->since, lost->waits_for};
    }
    ++result.count;
  };
  bool creator_holds = false;
  for (const lease& held : segment.leases) {
    creator_holds = creator_holds || held.holder == segment.creator_session;
    add(held.holder);
  }
  if (!creator_holds && segment.creator_session != 0) {
    add(segment.creator_session);
  }
  return result.count == 0 ? std::nullopt : std::optional(result);
}

bool domain::survey_some(segment_survey& survey) const {
  constexpr std::size_t effort_per_turn = 4'096;
  // A channel is nothing of the broker's; its producer has this timeline
  // (client/channel/channel_names.hpp).
  constexpr std::string_view producer = "/~producer";
  const auto count = [&](const segment& each) -> std::size_t {
    survey.by_kind.at(static_cast<std::size_t>(each.backend)).add(each);
    if (each.backend == backend::timeline && each.name.ends_with(producer)) {
      ++survey.channels;
    }
    if (each.leases.empty() && each.lifetime == lifetime::persistent) {
      survey.unheld.add(each);
    }
    if (ending_sessions_ == 0) {
      return 0;
    }
    if (const auto ending = ending_of(each)) {
      survey.ending.add(each);
      survey.ending_since = std::min(ending->since, survey.ending_since.value_or(ending->since));
    }
    return each.leases.size();
  };
  const auto next = visit_segments(survey.next_slot, effort_per_turn, count);
  survey.next_slot = next.value_or(static_cast<std::uint32_t>(slots_.end()));
  return next.has_value();
}

error domain::writer_ending(const segment& segment) const {
  const auto ending = ending_of(segment);
  const std::int32_t pid = ending ? ending->pid : segment.creator.pid;
  return {
      errc::writer_ending,
      {},
      {},
      "process " + std::to_string(pid) +
          ", the last to hold it, disconnected without a goodbye and may still write to it",
      "open it with a timeout: the wait ends tens of milliseconds after the process has exited; "
      "`gpushm stat` shows what it waits for, `gpushm release --unfenced` ends the wait",
      {.pid = pid}};
}

/// Answers opens that waited because the segment's contents were not final.
void domain::wake_after_fence(std::string_view name) {
  const auto at = published_.find(name);
  if (waiting_by_name_.empty() || at == published_.end()) {
    return;
  }
  if (waiting_by_name_.find(name) != waiting_by_name_.end()) {
    wake(*at->second);
  }
  if (at->second->is_versioned) {
    wake_under_aliases(*at->second);
  }
}

/// Up to `max_unfenced_per_turn` sessions whose leases of the segment wait for a fence, and which
/// `session` may end. Throws if there is none.
domain::unfence_choice domain::choose_to_unfence(session_id session, const segment& target) const {
  // The process of another party may still write, and only the operator can stop it.
  const auto& caller = sessions_.at(session).who;
  const bool may_end_all = is_operator(session);
  const bool may_end_own = may_manage(session, target);
  unfence_choice result;
  bool is_any_ending = false;
  const auto add = [&](session_id holder) {
    if (!is_ending(holder)) {
      return;
    }
    is_any_ending = true;
    if (may_end_all || (may_end_own && is_same_member(*sessions_.at(holder).who, *caller))) {
      result.has_more = result.holders.size() >= max_unfenced_per_turn;
      if (!result.has_more) {
        result.holders.insert(holder);
      }
    }
  };
  // The creator last: its end may free the name.
  for (auto at = target.leases.begin(); at != target.leases.end() && !result.has_more; ++at) {
    if (at->holder != target.creator_session) {
      add(at->holder);
    }
  }
  if (!result.has_more) {
    add(target.creator_session);
  }
  if (result.holders.empty() && (is_any_ending || !may_end_own)) {
    throw error(
        errc::permission_denied,
        {},
        {},
        "only the broker's uid may end leases of others that wait for a fence; its creator's "
        "uid in the same pod or container may end those of its own processes",
        "run it as the broker's user, and not in another container");
  }
  if (result.holders.empty()) {
    throw error(errc::invalid_argument,
                {},
                {},
                "none of its leases waits for a process to exit",
                "`gpushm stat` shows which leases do");
  }
  return result;
}

bool domain::unfence(session_id session, std::string_view name) {
  base::check_segment_name({}, name);
  segment& segment = visible(session, name, 0);
  const actor asks = find_session(session).who;
  const auto [holders, has_more] = choose_to_unfence(session, segment);
  const gpushm::generation generation = segment.generation;
  const std::string kept_name = segment.name;
  const bool is_published = segment.published;
  constexpr std::size_t objects_of_each = 8;
  make_room_to_record(holders.size() * objects_of_each);
  if (segment.published) {
    emit(event_kind::unfenced,
         segment,
         segment.leases.size() - std::min(segment.leases.size(), holders.size()),
         sessions_.at(*holders.begin()).who->pid,
         asks);
  }
  for (const session_id holder : holders) {
    const auto still = segments_.find(generation);
    if (still == segments_.end()) {
      break;
    }
    participant& gone = sessions_.at(holder);
    end_lease_of_ended_session(holder, asks, end_kind::unfenced, *still->second);
    gone.leased.erase(generation);
    gone.created.erase(generation);
    if (!is_published) {  // otherwise it is of the one that replaces it
      gone.unpublished.erase(kept_name);
    }
    if (gone.leased.empty() && gone.created.empty()) {
      disconnect(holder, false);
    }
  }
  wake_after_fence(kept_name);
  return has_more;
}

bool domain::resume(session_id lost, session_id session) {
  const auto from = sessions_.find(lost);
  const auto to = sessions_.find(session);
  if (from == sessions_.end() || to == sessions_.end() || !from->second.lost ||
      from->second.lost->is_resumed || from->second.held.who() != to->second.held.who()) {
    return false;
  }
  to->second.kept.emplace();
  to->second.resumes = lost;
  from->second.lost->is_resumed = true;
  note(record_kind::session, session);
  static_cast<void>(resume_some(session));
  return true;
}

bool domain::is_resuming(session_id session) const {
  const auto at = sessions_.find(session);
  return at != sessions_.end() && at->second.resumes != 0;
}

bool domain::resume_some(session_id session) noexcept {
  const auto to = sessions_.find(session);
  if (to == sessions_.end() || to->second.resumes == 0) {
    return false;
  }
  participant& successor = to->second;
  const auto from = sessions_.find(successor.resumes);
  participant& gone = from->second;
  for (std::size_t left = max_resumed_per_turn; left != 0; --left) {
    if (!gone.building.empty()) {
      const std::uint64_t id = *gone.building.begin();
      successor.building.insert(gone.building.extract(gone.building.begin()));
      versions_.set_session(id, session);
      version_records_.at(id).builder = session;
      settle_versions();
    } else if (!gone.leased.empty() || !gone.created.empty()) {
      const gpushm::generation next =
          gone.leased.empty() ? *gone.created.begin() : *gone.leased.begin();
      transfer(*segments_.at(next), from->first, session);
    } else if (!gone.awaiting_reply.empty() || !gone.queued_questions.empty()) {
      // Sent again once it has reported what it keeps.
      auto& questions = gone.awaiting_reply.empty() ? gone.queued_questions : gone.awaiting_reply;
      const std::uint64_t id = *questions.begin();
      successor.queued_questions.insert(questions.extract(questions.begin()));
      if (const auto question = confirming_.find(id); question != confirming_.end()) {
        question->second.exporter = session;
        question->second.sent = false;
        note(record_kind::confirmation, id);
      }
    } else {
      note(record_kind::session, from->first);
      note(record_kind::session, session);
      --ending_sessions_;
      successor.resumes = 0;
      sessions_.erase(from);
      return false;
    }
  }
  return true;
}

/// Everything that a session has of this segment.
void domain::transfer(segment& segment, session_id source, session_id target) noexcept {
  participant& gone = sessions_.at(source);
  participant& successor = sessions_.at(target);
  successor.leased.insert(gone.leased.extract(segment.generation));
  successor.created.insert(gone.created.extract(segment.generation));
  if (const auto at = gone.unpublished.find(segment.name);
      at != gone.unpublished.end() && at->second == &segment) {
    successor.unpublished.insert(gone.unpublished.extract(at));
  }
  if (segment.creator_session == source) {
    segment.creator_session = target;
    note(record_kind::segment, segment.generation);
  }
  for (lease& held : segment.leases) {
    if (held.holder != source) {
      continue;
    }
    note(record_kind::lease, segment.generation, source);
    note(record_kind::lease, segment.generation, target);
    held.holder = target;
    held.kept = false;
    if (segment.creator_session != target) {  // the creator's is charged with the segment
      successor.held.charge(resource::memory_bytes, cost::lease);
      gone.held.release(resource::memory_bytes, cost::lease);
    }
  }
  wake_after_fence(segment.name);
}

void domain::keep(session_id session,
                  std::span<const std::uint64_t> generations,
                  std::span<const std::uint64_t> counts,
                  bool more) {
  participant& successor = find_session(session);
  if (!successor.kept) {
    throw error(errc::invalid_argument,
                {},
                {},
                "the session resumed no other session, or has already sent Keep",
                "send Keep once, after a Welcome with resumed");
  }
  // Everything that may fail comes first.
  const auto lease_of = [&](gpushm::generation generation) -> lease* {
    const auto segment = segments_.find(generation);
    if (segment == segments_.end()) {
      return nullptr;
    }
    auto& leases = segment->second->leases;
    const auto own = std::find_if(
        leases.begin(), leases.end(), [&](const lease& held) { return held.holder == session; });
    return own == leases.end() ? nullptr : &*own;
  };
  const auto is_named = [](const lease* own, std::uint64_t count) {
    return own != nullptr && count != 0;
  };
  const std::size_t count = std::min(generations.size(), counts.size());
  unkept left{session, {}};
  if (!more) {
    std::set<gpushm::generation> named;
    for (std::size_t i = 0; i < count; ++i) {
      if (is_named(lease_of(generations[i]), counts[i])) {
        named.insert(generations[i]);
      }
    }
    for (const gpushm::generation each : successor.leased) {
      const lease* const own = lease_of(each);
      if (own != nullptr && !own->kept && !named.contains(each) &&
          !std::binary_search(successor.kept->begin(), successor.kept->end(), each)) {
        left.left.emplace_back(each, own->count);
      }
    }
  }
  const std::size_t parts = (left.left.size() + unkept::part_size - 1) / unkept::part_size;
  make_room_to_record(parts + count + 1);
  if (parts != 0) {
    unkept_.push_back(std::move(left));
  }
  for (std::size_t part = 0; part != parts; ++part) {
    note(record_kind::unkept, session, part);
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (lease* const own = lease_of(generations[i]); is_named(own, counts[i])) {
      own->count = static_cast<std::uint32_t>(std::min<std::uint64_t>(counts[i], own->count));
      own->kept = true;
      note(record_kind::lease, generations[i], session);
    }
  }
  if (!more) {
    successor.kept.reset();
    note(record_kind::session, session);
    send_questions(session);
  }
}

}  // namespace gpushm::core
