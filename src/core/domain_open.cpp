// SPDX-License-Identifier: Apache-2.0
// Leases, and opens that wait for their names.
#include <algorithm>
#include <utility>

#include "base/exporter_bound.hpp"
#include "base/names.hpp"
#include "core/domain.hpp"

namespace gpushm::core {

void domain::take_lease(session_id session, segment& what) {
  const auto at = std::find_if(what.leases.begin(), what.leases.end(), [&](const lease& claim) {
    return claim.holder == session;
  });
  if (at != what.leases.end()) {
    ++at->count;
    return;
  }
  participant& holder = find_session(session);
  what.leases.reserve(what.leases.size() + 1);
  holder.leased.insert(what.generation);
  what.leases.push_back({session, 1});
  ++lease_count_;
  if (session != what.creator_session) {
    emit(event_kind::opened, what, session);
  }
}

void domain::end_lease(session_id session, segment& what, std::uint32_t count) {
  const auto at = std::find_if(what.leases.begin(), what.leases.end(), [&](const lease& claim) {
    return claim.holder == session;
  });
  if (at == what.leases.end()) {
    return;
  }
  at->count -= std::min(at->count, count);
  if (at->count != 0) {
    return;
  }
  what.leases.erase(at);
  --lease_count_;
  if (const auto holder = sessions_.find(session); holder != sessions_.end()) {
    holder->second.leased.erase(what.generation);
  }
  const bool others = std::any_of(what.leases.begin(), what.leases.end(), [&](const lease& claim) {
    return claim.holder != what.creator_session;
  });
  if (what.published && !others && session != what.creator_session) {
    emit(event_kind::released, what, session);
  }
  if (base::is_exporter_bound(what.backend) && session == what.creator_session && !what.removed) {
    // Nobody could say any more whether the memory is still the same.
    unname(what);
    if (what.published) {
      emit(event_kind::removed, what, session);
    }
  }
  free_if_unused(what);
}

void domain::release(session_id session, gpushm::generation generation, std::uint32_t count) {
  if (const auto at = segments_.find(generation); at != segments_.end()) {
    end_lease(session, at->second, count);
  }
}

void domain::grant_or_refuse(session_id session, const open_request& request, segment& found) {
  if (request.expected_size_bytes != 0 && request.expected_size_bytes != found.size_bytes) {
    observer_.open_failed(
        session,
        request,
        error(errc::size_mismatch,
              {},
              {},
              "the segment has " + std::to_string(found.size_bytes) + " bytes, not the expected " +
                  std::to_string(request.expected_size_bytes),
              "expect the size that `gpushm stat` shows"));
    return;
  }
  try {
    take_lease(session, found);
  } catch (const std::bad_alloc&) {
    observer_.open_failed(session,
                          request,
                          error(errc::out_of_memory,
                                {},
                                {},
                                "the broker is out of memory",
                                "give the broker more memory"));
    return;
  }
  observer_.opened(session, request, found);
}

void domain::open(session_id session, const open_request& request) {
  try {
    base::check_name({}, request.name);
    static_cast<void>(find_session(session));
    const auto at = names_.find(request.name);
    if (at != names_.end() && at->second->published) {
      if (base::is_exporter_bound(at->second->backend)) {
        ask_exporter(session, request, *at->second, request.asked);
      } else {
        grant_or_refuse(session, request, *at->second);
      }
      return;
    }
    if (!request.deadline) {
      throw no_such_segment(request.name);
    }
    wait(session, request);
  } catch (const error& why) {
    observer_.open_failed(session, request, why);
  }
}

// ---- asking the exporter ----

void domain::ask_exporter(session_id session,
                          const open_request& request,
                          const segment& found,
                          time_point since) {
  participant& waiter = find_session(session);
  if (waiter.confirmations >= limits_.max_pending_opens) {
    throw error(errc::too_many_requests,
                {},
                {},
                std::to_string(waiter.confirmations) +
                    " opens of this connection wait for exporters, the limit",
                "open fewer segments at once");
  }
  const std::uint64_t id = next_confirmation_++;
  const time_point deadline = since + limits_.confirm_timeout;
  const auto at =
      confirming_.emplace(id, waiting_confirmation{session, request, found.generation, deadline})
          .first;
  try {
    confirming_by_deadline_.emplace(deadline, id);
  } catch (...) {
    confirming_.erase(at);
    throw;
  }
  ++waiter.confirmations;
  observer_.confirm(found.creator_session, id, found.generation);
}

domain::waiting_confirmation domain::take_confirmation(std::uint64_t id) {
  const auto at = confirming_.find(id);
  waiting_confirmation taken = std::move(at->second);
  confirming_.erase(at);
  confirming_by_deadline_.erase({taken.deadline, id});
  if (const auto waiter = sessions_.find(taken.session); waiter != sessions_.end()) {
    --waiter->second.confirmations;
  }
  return taken;
}

void domain::confirmed(session_id exporter, std::uint64_t confirmation, verdict answer) {
  const auto at = confirming_.find(confirmation);
  if (at == confirming_.end()) {
    return;
  }
  const auto found = segments_.find(at->second.generation);
  if (found != segments_.end() && found->second.creator_session != exporter) {
    return;  // not who was asked
  }
  const waiting_confirmation asked = take_confirmation(confirmation);
  if (found == segments_.end() || found->second.removed) {
    open(asked.session, asked.request);  // its name may be another's by now, or may be waited for
    return;
  }
  segment& what = found->second;
  if (answer == verdict::unchanged) {
    grant_or_refuse(asked.session, asked.request, what);
    return;
  }
  observer_.open_failed(asked.session,
                        asked.request,
                        error(errc::stale,
                              {},
                              {},
                              answer == verdict::changed
                                  ? "its exporter has freed or replaced the memory without unshare"
                                  : "its exporter does not share this memory any more",
                              "unshare before freeing, and share the new memory"));
  // Nobody can use it from here on.
  unname(what);
  emit(event_kind::removed, what, exporter);
  free_if_unused(what);
}

/// Of opens that `gone` asked for. Opens that wait for its word are told by `disconnect`.
void domain::drop_confirmations(session_id gone) {
  for (auto at = confirming_.begin(); at != confirming_.end();) {
    if (at->second.session == gone) {
      confirming_by_deadline_.erase({at->second.deadline, at->first});
      at = confirming_.erase(at);
    } else {
      ++at;
    }
  }
}

// ---- waiting for a name ----

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
  const std::uint64_t id = next_waiting_++;
  const auto kept = waiting_.emplace(id, waiting_open{session, std::move(request)}).first;
  const open_request& what = kept->second.request;
  try {
    waiter.waiting.insert(id);
    waiting_by_deadline_.emplace(*what.deadline, id);
    waiting_by_name_[what.name].insert(id);
  } catch (...) {  // out of memory half-way
    if (const auto by_name = waiting_by_name_.find(what.name);
        by_name != waiting_by_name_.end() && by_name->second.empty()) {
      waiting_by_name_.erase(by_name);
    }
    waiting_by_deadline_.erase({*what.deadline, id});
    waiter.waiting.erase(id);
    waiting_.erase(kept);
    throw;
  }
}

void domain::stop_waiting(std::uint64_t id) {
  const auto at = waiting_.find(id);
  const open_request& request = at->second.request;
  const auto by_name = waiting_by_name_.find(request.name);
  by_name->second.erase(id);
  if (by_name->second.empty()) {
    waiting_by_name_.erase(by_name);
  }
  waiting_by_deadline_.erase({*request.deadline, id});
  if (const auto waiter = sessions_.find(at->second.session); waiter != sessions_.end()) {
    waiter->second.waiting.erase(id);
  }
  waiting_.erase(at);
}

void domain::wake(segment& published) {
  const auto at = waiting_by_name_.find(published.name);
  if (at == waiting_by_name_.end()) {
    return;
  }
  const std::vector<std::uint64_t> ids(at->second.begin(), at->second.end());
  for (const std::uint64_t id : ids) {
    const waiting_open woken = waiting_.at(id);
    stop_waiting(id);
    if (!base::is_exporter_bound(published.backend)) {
      grant_or_refuse(woken.session, woken.request, published);
      continue;
    }
    try {  // it may have been reserved long ago; whoever waits has time until its own deadline
      ask_exporter(woken.session, woken.request, published, *woken.request.deadline);
    } catch (const error& why) {
      observer_.open_failed(woken.session, woken.request, why);
    }
  }
}

void domain::tick(time_point now) {
  while (!waiting_by_deadline_.empty() && waiting_by_deadline_.begin()->first <= now) {
    const std::uint64_t id = waiting_by_deadline_.begin()->second;
    const waiting_open expired = waiting_.at(id);
    stop_waiting(id);
    observer_.open_failed(expired.session, expired.request, no_such_segment(expired.request.name));
  }
  while (!confirming_by_deadline_.empty() && confirming_by_deadline_.begin()->first <= now) {
    const waiting_confirmation expired = take_confirmation(confirming_by_deadline_.begin()->second);
    observer_.open_failed(expired.session,
                          expired.request,
                          error(errc::timed_out,
                                {},
                                {},
                                "the process that shares this memory does not answer",
                                "see whether it is stopped or overloaded"));
  }
}

std::optional<time_point> domain::next_deadline() const {
  std::optional<time_point> next;
  for (const auto* deadlines : {&waiting_by_deadline_, &confirming_by_deadline_}) {
    if (!deadlines->empty() && (!next || deadlines->begin()->first < *next)) {
      next = deadlines->begin()->first;
    }
  }
  return next;
}

}  // namespace gpushm::core
