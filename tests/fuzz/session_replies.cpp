// SPDX-License-Identifier: Apache-2.0
// What a `session_world` expects of the packets that a broker sends.
#include <algorithm>

#include "base/segments/exporter_bound.hpp"
#include "protocol/wire/codec.hpp"
#include "tests/fuzz/require.hpp"
#include "tests/fuzz/session_world.hpp"

namespace gpushm_fuzz {

using namespace gpushm;
using broker_detail::outgoing;

void session_world::lose_event(broker_detail::session& /*session*/,
                               std::uint64_t /*subscription*/) noexcept {
  GPUSHM_REQUIRE(false);  // memory does not run out
}

void session_world::retry_recording() noexcept {
  GPUSHM_REQUIRE(false);
}

succession::kept_fd session_world::open_event_lane(broker_detail::session& session) {
  GPUSHM_REQUIRE(!session.has_event_lane);
  return {};
}

std::uint64_t session_world::events_queued(const broker_detail::session& session) const noexcept {
  const auto at = events_.find(session.number);
  return at == events_.end() ? 0 : at->second;
}

void session_world::fence_of(broker_detail::session& session,
                             fence kind,
                             succession::kept_fd pidfd,
                             succession::kept_fd life) {
  GPUSHM_REQUIRE(dropped_.count(session.number) == 0);
  GPUSHM_REQUIRE(kind != fence::none && pidfd && life);
}

void session_world::drop(broker_detail::session& session, std::string_view /*why*/) noexcept {
  GPUSHM_REQUIRE(dropped_.insert(session.number).second);
  to_lose_.push_back(session.number);
  gone_.insert(session.number);
  std::replace(sessions_.begin(), sessions_.end(), session.number, core::session_id{0});
}

void session_world::send(broker_detail::session& target,
                         broker_detail::prepared prepared) noexcept {
  if (prepared.empty()) {
    return;
  }
  const core::session_id session = target.number;
  GPUSHM_REQUIRE(prepared.size() == 1);
  outgoing& packet = prepared.front();
  GPUSHM_REQUIRE(dropped_.count(session) == 0);
  const std::vector<std::byte> bytes = packet.encode();
  GPUSHM_REQUIRE(bytes.size() <= wire::max_packet_bytes);
  GPUSHM_REQUIRE(packet.descriptors.size() <= wire::max_batch);
  const auto message = wire::decode(bytes);
  GPUSHM_REQUIRE(message);
  if (const auto* created = std::get_if<wire::reserved>(&message->body)) {
    GPUSHM_REQUIRE(packet.descriptors.empty());
    generations_.push_back(created->generation);
  }
  if (const auto* greeted = std::get_if<wire::welcome>(&message->body)) {
    GPUSHM_REQUIRE(greeted->token != wire::session_token{});
    tokens_.push_back(greeted->token);
  }
  if (const auto* reply_opened = std::get_if<wire::opened>(&message->body)) {
    check_opened(*reply_opened, packet.descriptors.size());
  }
  if (const auto* query = std::get_if<wire::confirm>(&message->body)) {
    GPUSHM_REQUIRE(packet.descriptors.empty() && !packet.subscription);
    GPUSHM_REQUIRE(message->id == 0);
    check_questions(session, *query);
  }
  if (const auto* notice = std::get_if<wire::event>(&message->body); notice && message->id == 0) {
    GPUSHM_REQUIRE(notice->kind == event_kind::removed && notice->generation != 0);
    GPUSHM_REQUIRE(segment_of(session, notice->generation) != nullptr);  // sent to holders only
  }
  if (const auto* more = std::get_if<wire::chunks>(&message->body)) {
    GPUSHM_REQUIRE(packet.descriptors.size() == more->chunk_bytes.size());
  }
  count_reply(session, *message, packet);
  check_packet(session, *message, packet);
  events_[session] += packet.on_event_lane ? 1U : 0U;
  if (packet.files) {
    packets_.push_back(std::move(packet));
  }
}

void session_world::check_opened(const wire::opened& reply, std::size_t descriptors) {
  GPUSHM_REQUIRE(descriptors == reply.chunk_bytes.size());
  GPUSHM_REQUIRE(reply.segment.published && reply.segment.state != segment_state::removed);
  const bool bound = base::is_exporter_bound(reply.segment.backend);
  GPUSHM_REQUIRE(bound == !reply.ticket.empty());
  GPUSHM_REQUIRE(!bound || reply.segment.lifetime == lifetime::leased);
  // Bound memory is opened only if its exporter has just confirmed this open.
  const auto agreed = agreed_.find(reply.segment.generation);
  GPUSHM_REQUIRE(!bound || agreed != agreed_.end());
  if (bound) {
    agreed_.erase(agreed);
  }
}

void session_world::check_questions(session_id session, const wire::confirm& query) {
  for (std::size_t i = 0; i < query.questions.size(); ++i) {
    const gpushm::generation generation = query.generations[i];
    const auto* segment = segment_of(session, generation);
    GPUSHM_REQUIRE(segment != nullptr && base::is_exporter_bound(segment->backend));
    GPUSHM_REQUIRE(segment->creator_session == session && query.questions[i] != 0);
    // Only an exporter that has resumed gets a question again.
    const auto [at, is_new] = questions_.insert({query.questions[i], {session, generation}});
    GPUSHM_REQUIRE(is_new || at->second.first != session);
    at->second.first = session;
  }
}

void session_world::count_reply(session_id session,
                                const wire::message& message,
                                const outgoing& packet) {
  const auto* const reply_opened = std::get_if<wire::opened>(&message.body);
  const auto* const failed = std::get_if<wire::failure>(&message.body);
  const std::uint32_t index = reply_opened != nullptr ? reply_opened->index
                              : failed != nullptr     ? failed->index
                                                      : 0;
  auto& pending = awaiting_reply_[session];
  if ((reply_opened != nullptr || failed != nullptr) && opens_.count({session, message.id}) != 0) {
    const bool whole = failed != nullptr && pending.count({message.id, index}) == 0;
    GPUSHM_REQUIRE(!whole);  // second reply
    pending.erase({message.id, index});
  }
  if (const auto* later = std::get_if<wire::waiting>(&message.body)) {
    GPUSHM_REQUIRE(!packet.on_event_lane);
    GPUSHM_REQUIRE(waits_.insert({session, message.id, later->index}).second);
  }
  if (reply_opened != nullptr || (failed != nullptr && packet.on_event_lane)) {
    // Late replies exactly for opens that were reported as waiting.
    GPUSHM_REQUIRE(packet.on_event_lane == (waits_.erase({session, message.id, index}) == 1));
  }
  if (std::holds_alternative<wire::cancelled>(message.body)) {
    const std::uint64_t request = cancels_.at({session, message.id});
    const auto count = std::erase_if(pending, [&](const auto& each) {
      return each.first == request && waits_.erase({session, request, each.second}) == 1;
    });
    GPUSHM_REQUIRE(count != 0);
  }
}

}  // namespace gpushm_fuzz
