// SPDX-License-Identifier: Apache-2.0
#include "broker/server/restorer.hpp"

#include <algorithm>
#include <utility>

#include "broker/session/connection.hpp"
#include "broker/session/sender.hpp"
#include "gpushm/error.hpp"
#include "protocol/transport/credentials.hpp"
#include "protocol/transport/packet_socket.hpp"
#include "protocol/wire/codec.hpp"
#include "succession/recorder/limited_log.hpp"

namespace gpushm::broker_detail {

namespace {

connection& connection_of(session& session) noexcept {
  return static_cast<connection&>(session);
}

}  // namespace

void restorer::restore() {
  for (const auto& [name, value] : from_.state.records) {
    if (const auto* const found = std::get_if<core::saved_segment>(&value)) {
      restore_segment(name.first, *found);
    }
  }
  hub_.domain().slots().for_each(
      [&](const core::slot_word& each) { table_.set(each.slot, each.generation, each.state); });
  for (const auto& [name, value] : from_.state.records) {
    if (const auto* const found = std::get_if<core::saved_session>(&value)) {
      restore_session(name.first, *found);
    }
  }
  for (const auto& [generation, freed] : from_.freeing) {
    restore_freed(generation, freed);
  }
  for (auto& [number, packet] : from_.packets) {
    restore_packet(number, packet);
  }
  hub_.for_each_session([&](session& each) { restore_events(connection_of(each)); });
  hub_.for_each_session([&](session& each) { give_table(connection_of(each)); });
  recorder_.erase(records::key_of(records::kind::events_left));  // each has a resync now
  for (const records::descriptor_id number : from_.descriptors.numbers()) {
    recorder_.forget(number);  // the predecessor was killed before it had recorded it
  }
  recorder_.commit();
  for (const gpushm::generation each : lost_) {
    hub_.lose_memory(each);
  }
  drop_sessions();
  orphans_.clear();
  closer_->flush();
  hub_.for_each_session([&](session& each) { loop_.request_turn(connection_of(each)); });
}

void restorer::drop_sessions() {
  const auto drop = [&](core::session_id number, std::string_view why) {
    session* const session = hub_.find(number);
    if (session != nullptr && !connection_of(*session).closed) {
      session->dropped = true;
      connection_of(*session).record();
      session_ender_.drop(connection_of(*session), why);
    }
  };
  if (from_.suspect) {  // its next step would also end this process
    drop(*from_.suspect, "several brokers in a row have ended in a step for it");
  }
  for (const auto& [number, why] : dropped_) {
    drop(number, why);
  }
}

void restorer::restore_segment(gpushm::generation generation, const core::saved_segment& segment) {
  auto files = std::make_shared<segment_files>();
  if (const auto file = from_.files.find(generation); file != from_.files.end()) {
    for (const records::descriptor_id each : file->second.chunks) {
      files->chunks.push_back(from_.take(each));
      files->is_lost = files->is_lost || !files->chunks.back();
    }
    files->chunk_bytes = file->second.chunk_bytes;
    if (file->second.writable != 0) {
      files->chunks.push_back(from_.take(file->second.writable));
      files->is_lost = files->is_lost || !files->chunks.back();
    }
  }
  if (files->is_lost) {
    succession::log_about_members(
        log_level::error,
        "the keeper has lost a descriptor of segment \"" + segment.name +
            "\": it is removed (raise the keeper's limit of descriptors)");
    lost_.push_back(generation);
  }
  hub_.restore(generation, std::move(files));
}

void restorer::restore_session(core::session_id number, const core::saved_session& session) {
  const records::connection_record& record = from_.connections[number];
  const auto created = std::make_shared<connection>(
      io_, number, record.closed ? succession::kept_fd() : from_.take(record.requests), recorder_);
  created->greeted = record.greeted;
  created->sent_bye = record.sent_bye;
  created->dropped = record.dropped;
  created->token = record.token;
  created->fence = record.fence;
  created->known_kinds = record.known_kinds;
  created->takes_tables = record.takes_tables;
  created->knows_versions = record.knows_versions;
  created->has_event_lane = record.events != 0;
  created->requests.sent = record.greeted ? 1 : 0;  // Welcome, or it is queued
  if (const auto rest = from_.rests.find(number); rest != from_.rests.end()) {
    records::open_rest_record& r = rest->second;
    created->rest = open_rest{
        r.id, {std::move(r.names), r.expected_size_bytes, 0}, r.next, r.deadline, r.asked};
    created->recorded_next = r.next;
  }
  hub_.restore(created);
  if (created->rest) {
    created->rest->held = hub_.new_charges(*created);
    created->rest->held.charge(core::resource::memory_bytes, created->rest->memory_bytes());
  }
  succession::kept_fd process = from_.take(record.process);
  created->process_id = process.id;
  succession::kept_fd life = from_.take(record.life);
  created->life_id = life.id;
  created->principal = session.who.principal;
  succession::kept_fd events = record.closed ? succession::kept_fd() : from_.take(record.events);
  if (created->fence != fence::none && (!process || !life)) {
    created->fence = fence::none;  // lost: nothing can prove the end of its process
  }
  created->life = end_watch(io_, std::move(life.file));
  if (!created->requests.socket || (record.events != 0 && !events)) {
    created->peer.pid = session.who.pid;
    created->process = end_watch(io_, std::move(process.file));
    // One socket is lost: the other one may have unread descriptors.
    session_ender_.close_socket(created->principal, created->requests.take_socket());
    session_ender_.close_socket(created->principal, std::move(events));
    session_ender_.restore_closed(*created);
    created->record();
    return;
  }
  if (events) {
    created->events.emplace(io_, *created, lane_kind::events, std::move(events));
  }
  const auto peer = transport::peer_of(created->requests.socket.get());
  admission_.start(created, peer, session.who.principal, std::move(process.file));
  session_ender_.watch_process(*created);
  created->for_each_lane([&](lane& each) {
    each.readable = true;
    each.handled = from_.handled.count({number, each.kind == lane_kind::events ? 1U : 0U}) != 0;
    each.unread_bytes = static_cast<std::uint64_t>(transport::unread_bytes(each.socket.get()));
    created->held.charge(core::resource::memory_bytes, each.unread_bytes);
    const std::uint32_t sent =
        each.kind == lane_kind::events ? record.inflight_events : record.inflight_requests;
    each.inflight_bound = sent != 0 ? sent : max_inflight_descriptors_;
    sender_.restore_inflight(each);
  });
}

void restorer::restore_packet(std::uint64_t number, records::packet_record& record) {
  auto* const hub = hub_.find(record.session);
  if (hub == nullptr || connection_of(*hub).closed) {
    recorder_.erase(records::key_of(records::kind::packet, number));
    return;
  }
  connection& to = connection_of(*hub);
  lane& on = record.on_event_lane && to.events ? *to.events : to.requests;
  outgoing packet;
  packet.number = number;
  packet.is_reply = record.is_reply;
  packet.on_event_lane = record.on_event_lane;
  packet.ids = record.descriptors;
  const auto segment_record =
      from_.state.records.find({core::record_kind::segment, record.files_of});
  if (record.files_of != 0 && segment_record != from_.state.records.end()) {
    const core::segment& of = hub_.domain().segment_of(record.files_of);
    packet.files = std::static_pointer_cast<const segment_files>(of.payload);
    packet.metadata = record.metadata_of != 0 ? of.metadata : nullptr;
  } else if (record.files_of != 0) {
    packet.files = orphans_of(record);  // its segment is freed already
  }
  if (packet.files && packet.files->is_lost) {
    // It cannot be sent. The client connects again, and keeps the leases that it knows.
    recorder_.erase(records::key_of(records::kind::packet, number));
    dropped_.emplace(record.session, "the memory of a reply is lost");
    return;
  }
  for (const records::descriptor_id each : record.descriptors) {
    int descriptor = -1;
    if (each == 0) {
      descriptor = table_.descriptor();
    } else if (packet.files) {
      for (const succession::kept_fd& chunk : packet.files->chunks) {
        descriptor = chunk.id == each ? chunk.get() : descriptor;
      }
    } else {
      packet.own = std::make_shared<const succession::kept_fd>(from_.take(each));
      descriptor = packet.own->get();
    }
    packet.descriptors.push_back(descriptor);
  }
  if (auto message = packet.metadata ? wire::decode(record.bytes) : std::nullopt) {
    packet.late = std::move(*message);
  } else {
    packet.packet = std::move(record.bytes);
  }
  to.held.charge(core::resource::memory_bytes, packet.cost());
  to.queued_replies += packet.is_reply ? 1U : 0U;
  if (&on == &to.requests) {
    ++on.queued;
  } else {
    places_[record.session].insert(record.place);
  }
  on.queue.push_back(std::move(packet));
}

/// The keeper has those that the predecessor had not removed.
void restorer::restore_freed(gpushm::generation generation, const core::saved_segment& segment) {
  std::vector<succession::kept_fd> left;
  const auto take = [&](records::descriptor_id number) {
    if (succession::kept_fd taken = from_.take(number)) {
      left.push_back(std::move(taken));
    }
  };
  if (const auto found = from_.files.find(generation); found != from_.files.end()) {
    std::for_each(found->second.chunks.begin(), found->second.chunks.end(), take);
    take(found->second.writable);
  }
  orphans_[generation] = hub_.restore_freed(generation, segment, std::move(left));
}

std::shared_ptr<const segment_files> restorer::orphans_of(const records::packet_record& record) {
  auto& orphans = orphans_[record.files_of];
  if (!orphans) {  // of an earlier version
    orphans = std::make_shared<segment_files>();
    orphans->generation = record.files_of;
    orphans->closed_by = closer_;
  }
  for (const records::descriptor_id each : record.descriptors) {
    if (succession::kept_fd taken = from_.take(each)) {
      orphans->chunks.push_back(std::move(taken));
    }
  }
  return orphans;
}

/// Events that were queued are not recorded. Each is replaced by a resync, so that the number of
/// packets stays as earlier replies say, and all subscriptions get one.
void restorer::restore_events(connection& connection) {
  const auto places = std::exchange(places_[connection.number], {});
  if (connection.closed || !connection.events) {
    return;
  }
  const records::lane_record counted = from_.lanes[connection.number];
  lane& on = *connection.events;
  on.queued = counted.queued;
  on.sent = counted.sent;
  prepared recorded = std::exchange(on.queue, {});
  bool any_lost = false;
  for (std::uint64_t place = on.sent; place < on.queued; ++place) {
    if (places.count(place) != 0 && !recorded.empty()) {
      on.queue.splice(on.queue.end(), recorded, recorded.begin());
      continue;
    }
    any_lost = true;
    outgoing packet = resync_of(0);
    ++connection.queued_events;
    connection.held.charge(core::resource::memory_bytes, packet.cost());
    on.queue.push_back(std::move(packet));
  }
  on.queue.splice(on.queue.end(), recorded);
  if (!any_lost && !from_.are_events_left) {
    return;
  }
  // Recorded now: nothing else says later that events were left.
  const auto queue_resync = [&](std::uint64_t subscription) {
    outgoing packet = resync_of(subscription);
    ++connection.queued_events;
    ++on.queued;
    connection.held.charge(core::resource::memory_bytes, packet.cost());
    on.queue.push_back(std::move(packet));
  };
  if (from_.are_events_left) {
    queue_resync(0);  // about its leases
  }
  const core::record_name first{core::record_kind::subscription, connection.number, 0};
  for (auto at = from_.state.records.lower_bound(first);
       at != from_.state.records.end() && at->first.kind == first.kind &&
       at->first.first == connection.number;
       ++at) {
    if (from_.are_events_left) {
      queue_resync(at->first.second);
    } else {
      connection.lost_subscriptions.push_back(at->first.second);
    }
  }
  connection.record_events();
}

/// The one before shows its broker dead. After what the predecessor has queued, and before all
/// events of this broker, so that a client compares them with this table.
void restorer::give_table(connection& connection) {
  if (!connection.greeted || !connection.events || connection.closed || connection.dropped) {
    return;
  }
  if (!connection.takes_tables) {  // it would use what the old one says for two seconds
    dropped_.emplace(connection.number, "its version cannot follow a broker that was replaced");
    return;
  }
  const prepared& queued = connection.events->queue;
  if (std::any_of(queued.begin(), queued.end(), [](const outgoing& each) {
        return each.is_table();  // the predecessor has not sent its own: this one goes instead
      })) {
    return;
  }
  prepared packet(1);
  packet.front().packet = wire::encode({0, wire::continued{}});
  packet.front().descriptors = {table_.descriptor()};
  packet.front().ids = {0};
  packet.front().is_reply = false;
  packet.front().on_event_lane = true;
  sender_.send(connection, std::move(packet));
}

}  // namespace gpushm::broker_detail
