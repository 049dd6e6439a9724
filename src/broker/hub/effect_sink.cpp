// SPDX-License-Identifier: Apache-2.0
#include "broker/hub/effect_sink.hpp"

#include <algorithm>
#include <limits>
#include <new>
#include <utility>

#include "base/segments/exporter_bound.hpp"

namespace gpushm::broker_detail {

void effect_sink::settle(session* session, prepared reply) noexcept {
  counters_.state_of(domain_);  // before the reply, so that its client sees it counted
  core::effects& wanted = domain_.pending();
  std::size_t slots = 0;
  std::size_t waits = 0;
  std::size_t replies = 0;
  std::size_t questions = 0;
  std::size_t changes = 0;
  // A reply that cannot be sent releases its lease, which may cause more effects.
  for (;;) {
    if (slots < wanted.slots.size()) {
      const core::slot_word word = wanted.slots[slots++];
      listener_(listener_context_, word.slot, word.generation, word.state);
      if (word.state == segment_state::exporter_gone) {
        pages_.end(word.generation);
      }
    } else if (waits < wanted.waits.size()) {
      send_waiting(core::open_waits(wanted.waits[waits++]));
    } else if (replies < wanted.replies.size()) {
      deliver(std::move(wanted.replies[replies++]));
    } else if (!reply.empty()) {
      send(session, std::exchange(reply, {}));
    } else if (questions < wanted.questions.size()) {
      questions += send_questions(std::span(wanted.questions).subspan(questions));
    } else if (changes < wanted.changes.size()) {
      send_event(core::change(wanted.changes[changes++]));
    } else {
      break;
    }
  }
  record_.record(wanted);
  wanted.clear();
  counters_.state_of(domain_);
}

/// Sends the first questions, as many as one packet can carry. Returns their number. If memory is
/// short, refuses their opens instead.
std::size_t effect_sink::send_questions(std::span<const core::question> questions) noexcept {
  const core::session_id exporter = questions.front().exporter;
  const auto end = std::find_if(questions.begin(), questions.end(), [&](const auto& each) {
    return each.exporter != exporter;
  });
  const auto now = questions.first(
      std::min<std::size_t>(static_cast<std::size_t>(end - questions.begin()), wire::max_batch));
  try {
    wire::confirm list;
    for (const core::question& each : now) {
      list.questions.push_back(each.confirmation);
      list.generations.push_back(each.generation);
    }
    outgoing packet;
    packet.is_reply = false;
    packet.on_event_lane = true;
    send(session_of(domain_, exporter), prepare(0, std::move(list), std::move(packet)));
  } catch (const std::bad_alloc&) {
    for (const core::question& each : now) {
      domain_.question_not_sent(each);
    }
  }
  return now.size();
}

/// If memory is short, cancels the open and replies with the failure.
void effect_sink::send_waiting(const core::open_waits& waits) noexcept {
  session* const to = session_of(domain_, waits.session);
  try {
    wire::waiting message{waits.index};
    outgoing packet;
    if (waits.offered) {
      packet.files = shared_files_of(*waits.offered);
      message.segment = fields_of(*waits.offered);
      message.chunk_bytes = carry_chunks(packet, 0);
      message.ticket = waits.offered->ticket;
    }
    send(to, prepare(waits.request, std::move(message), std::move(packet)));
  } catch (const std::bad_alloc&) {
    if (domain_.cancel(waits.session, waits.request, waits.index)) {
      counters_.open_failed(errc::out_of_memory);
    }
    fail(to, waits.request, waits.index, nullptr);
  }
}

void effect_sink::deliver(core::open_reply reply) noexcept {
  session* const to = session_of(domain_, reply.session);
  const auto return_lease = [&] {
    if (!base::is_only_fetched(reply.found->backend)) {
      domain_.release(reply.session, reply.found->generation, 1, true);
    }
  };
  if (reply.found && to != nullptr && !is_known_to(*to, *reply.found)) {
    return_lease();
    reply.found = nullptr;
    reply.why.reset();
    try {
      reply.why = unknown_kind();
    } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): refused without a text
    }
  }
  if (reply.found) {
    try {
      prepared packet = opened(reply);
      counters_.opened();
      send(to, std::move(packet));
      return;
    } catch (const std::bad_alloc&) {  // without a reply there is no lease
      return_lease();
      reply.why.reset();
    }
  }
  counters_.open_failed(reply.why ? reply.why->code() : errc::out_of_memory);
  fail(to,
       reply.request,
       reply.index,
       reply.why ? &*reply.why : nullptr,
       reply.late ? lane_kind::events : lane_kind::requests);
}

prepared effect_sink::opened(const core::open_reply& reply) const {
  const core::segment& segment = *reply.found;
  outgoing packet;
  packet.files = shared_files_of(segment);
  packet.metadata = segment.metadata;
  packet.on_event_lane = reply.late;
  auto sizes = carry_chunks(packet, 0);
  return prepare(reply.request,
                 wire::opened{reply.index,
                              fields_of(segment),
                              {},
                              std::move(sizes),
                              segment.ticket,
                              record_.receipt_for(reply.session, segment),
                              reply.alias.slot,
                              reply.alias.generation},
                 std::move(packet));
}

void effect_sink::send_event(core::change cause) noexcept {
  const core::domain::places to = cause.holder != 0 ? holder_only : domain_.subscribers();
  unsent_change one{std::move(cause), to};
  if (unsent_.empty()) {
    send_some(one, effort_);
    if (one.left.empty()) {
      return;
    }
  }
  try {
    unsent_.push_back(std::move(one));
    ++put_off_;
  } catch (const std::bad_alloc&) {  // all at once, in a long turn
    std::size_t unbounded = std::numeric_limits<std::size_t>::max();
    for (unsent_change& each : unsent_) {
      send_some(each, unbounded);
    }
    unsent_.clear();
    send_some(one, unbounded);
  }
}

void effect_sink::send_some(unsent_change& unsent, std::size_t& effort) noexcept {
  const core::change& cause = unsent.cause;
  if (cause.holder != 0) {
    if (effort != 0) {
      effort -= std::min(effort, core::domain::effort_of_event + 1);
      send_event(session_of(domain_, cause.holder), 0, cause);
      unsent.left.next = unsent.left.end;
    }
    return;
  }
  domain_.visit_subscribers(cause.name(),
                            unsent.left,
                            effort,
                            [&](core::session_id subscriber, std::uint64_t subscription) {
                              send_event(session_of(domain_, subscriber), subscription, cause);
                            });
}

void effect_sink::send_events() noexcept {
  while (!unsent_.empty()) {
    send_some(unsent_.front(), effort_);
    if (!unsent_.front().left.empty()) {
      return;
    }
    unsent_.pop_front();
  }
}

void effect_sink::end_turn() noexcept {
  effort_ = effort_per_turn;
  record_.set_events_left(has_events());
  out_.record_events();
}

void effect_sink::send_event(session* session,
                             std::uint64_t subscription,
                             const core::change& change) noexcept {
  if (session == nullptr || session->dropped || !is_known_to(*session, change)) {
    return;
  }
  if (!out_.takes_event(*session, subscription)) {
    out_.lose_event(*session, subscription);
    return;
  }
  try {
    outgoing packet;
    packet.subscription = subscription;
    packet.is_reply = false;
    packet.on_event_lane = true;
    out_.send(*session,
              prepare(subscription,
                      wire::event{change.kind,
                                  std::string(change.name()),
                                  change.generation(),
                                  change.leases,
                                  change.peer_pid,
                                  change.kind == event_kind::removed ? change.of->loss()
                                                                     : base::device_loss{}},
                      std::move(packet)));
  } catch (const std::bad_alloc&) {
    out_.lose_event(*session, subscription);
  }
}

void effect_sink::reject(session& session, std::uint64_t id, std::string_view cause) {
  counters_.requests().refused(request_kind::other, errc::protocol_error);
  try {
    const error why(errc::protocol_error, {}, {}, cause, "use a client of protocol version 2");
    fail(&session, id, 0, &why);
  } catch (const std::bad_alloc&) {
    fail(&session, id, 0, nullptr);
  }
  drop(session, cause);
}

void effect_sink::drop(session& session, std::string_view why) noexcept {
  if (!std::exchange(session.dropped, true)) {
    session.rest.reset();
    out_.record(session);
    out_.drop(session, why);
  }
}

void effect_sink::send(session* target, prepared packet) noexcept {
  if (target != nullptr && !target->dropped) {
    out_.send(*target, std::move(packet));
  }
}

void effect_sink::fail(session* session,
                       std::uint64_t id,
                       std::uint32_t index,
                       const error* why,
                       lane_kind kind) noexcept {
  if (session == nullptr) {
    return;
  }
  const auto attempt = [&](const error& reason) {
    outgoing packet;
    packet.on_event_lane = kind == lane_kind::events;
    send(session,
         prepare(
             id,
             wire::failure{index, reason.code(), reason.cause(), reason.next_step(), reason.pid()},
             std::move(packet)));
  };
  if (why != nullptr) {
    try {
      attempt(*why);
      return;
    } catch (const std::bad_alloc&) {  // there may be enough for a shorter one
    }
  }
  try {
    attempt(core::broker_out_of_memory());
  } catch (const std::bad_alloc&) {
    drop(*session, "no memory for a reply");
  }
}

}  // namespace gpushm::broker_detail
