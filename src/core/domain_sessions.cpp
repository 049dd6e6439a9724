// SPDX-License-Identifier: Apache-2.0
// Connections, and who hears of what.
#include <algorithm>
#include <utility>

#include "base/exporter_bound.hpp"
#include "core/domain.hpp"

namespace gpushm::core {

domain::participant& domain::find_session(session_id id) {
  const auto at = sessions_.find(id);
  if (at == sessions_.end()) {
    throw error(errc::protocol_error, {}, {}, "the session has not said hello", "say hello first");
  }
  return at->second;
}

void domain::connect(session_id id, const peer& who) {
  if (limits_.max_descriptors != 0 &&
      descriptors_ + limits_.descriptors_per_session > limits_.max_descriptors) {
    throw error(errc::too_many_descriptors,
                {},
                {},
                "the broker has no descriptors left for another connection",
                "raise the broker's open file limit, or remove segments");
  }
  sessions_[id].who = who;
  descriptors_ += limits_.descriptors_per_session;
}

void domain::disconnect(session_id id, bool clean) {
  const auto at = sessions_.find(id);
  if (at == sessions_.end()) {
    return;
  }
  while (!at->second.waiting.empty()) {
    stop_waiting(*at->second.waiting.begin());
  }
  drop_confirmations(id);
  std::erase_if(subscriptions_, [&](const subscription& entry) { return entry.session == id; });
  // From here on nobody can reach the session; what it had is worked off from a copy.
  const participant gone = std::move(at->second);
  sessions_.erase(at);
  descriptors_ -= limits_.descriptors_per_session;

  std::set<gpushm::generation> touched = gone.leased;
  touched.insert(gone.created.begin(), gone.created.end());
  for (const gpushm::generation generation : touched) {
    const auto found = segments_.find(generation);
    if (found == segments_.end()) {
      continue;
    }
    segment& what = found->second;
    const bool created = what.creator_session == id;
    if (!clean && what.published) {
      // The leases that are left are the ones of others.
      const auto left = std::count_if(
          what.leases.begin(), what.leases.end(), [&](const lease& l) { return l.holder != id; });
      emit({event_kind::peer_died,
            what.name,
            what.generation,
            static_cast<std::uint32_t>(left),
            gone.who.pid});
    }
    const auto own = std::find_if(
        what.leases.begin(), what.leases.end(), [&](const lease& l) { return l.holder == id; });
    const bool held = own != what.leases.end();
    if (held && !created) {
      end_lease(id, what, own->count);
      continue;
    }
    what.creator_session = 0;
    if (held) {
      what.leases.erase(own);
      --lease_count_;
    }
    if (base::is_exporter_bound(what.backend)) {
      end_with_exporter(what, clean);
    } else if (!clean && !what.removed && stays(what)) {
      observer_.slot_changed(what.slot, what.generation, segment_state::exporter_gone);
    }
    free_if_unused(what);
  }
}

/// Who has it mapped keeps it; nobody else gets it any more, and the name is free for whoever
/// shares it next.
void domain::end_with_exporter(segment& what, bool clean) {
  if (!what.removed) {
    if (!clean && what.published) {
      remember_dead(what.name);
    }
    unname(what, clean ? segment_state::removed : segment_state::exporter_gone);
    if (what.published) {
      emit(event_kind::removed, what, 0);
    }
  }
  std::vector<std::uint64_t> asked;
  for (const auto& [confirmation, waiting] : confirming_) {
    if (waiting.generation == what.generation) {
      asked.push_back(confirmation);
    }
  }
  for (const std::uint64_t confirmation : asked) {
    const waiting_confirmation waiting = take_confirmation(confirmation);
    observer_.open_failed(waiting.session,
                          waiting.request,
                          clean ? no_such_segment(waiting.request.name) : exporter_died());
  }
}

void domain::subscribe(session_id id, std::uint64_t number, std::string prefix) {
  participant& subscriber = find_session(id);
  if (subscriber.subscriptions >= limits_.max_subscriptions) {
    throw error(
        errc::too_many_requests,
        {},
        {},
        std::to_string(subscriber.subscriptions) + " subscriptions on this connection, the limit",
        "subscribe to a shorter prefix once");
  }
  const bool taken =
      std::any_of(subscriptions_.begin(), subscriptions_.end(), [&](const subscription& entry) {
        return entry.session == id && entry.id == number;
      });
  if (taken || prefix.size() > max_name_bytes) {
    throw error(errc::invalid_argument,
                {},
                {},
                taken ? "the request's id names a subscription already" : "the prefix is too long",
                "use a new request id, and a prefix of at most 255 bytes");
  }
  subscriptions_.push_back({id, number, std::move(prefix)});
  ++subscriber.subscriptions;
}

void domain::unsubscribe(session_id id, std::uint64_t number) {
  participant& subscriber = find_session(id);
  subscriber.subscriptions -=
      static_cast<std::uint32_t>(std::erase_if(subscriptions_, [&](const subscription& entry) {
        return entry.session == id && entry.id == number;
      }));
}

void domain::emit(event_kind kind, const segment& what, session_id cause) {
  const auto at = sessions_.find(cause);
  emit({kind,
        what.name,
        what.generation,
        static_cast<std::uint32_t>(what.leases.size()),
        at == sessions_.end() ? 0 : at->second.who.pid});
}

void domain::emit(const change& what) {
  for (const subscription& entry : subscriptions_) {
    if (what.name.substr(0, entry.prefix.size()) == entry.prefix) {
      observer_.notify(entry.session, entry.id, what);
    }
  }
}

}  // namespace gpushm::core
