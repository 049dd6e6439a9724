// SPDX-License-Identifier: Apache-2.0
#include "broker/session/sender.hpp"

#include <algorithm>
#include <new>
#include <utility>
#include <vector>

#include "broker/session/member_log.hpp"
#include "gpushm/error.hpp"
#include "protocol/transport/packet_socket.hpp"
#include "protocol/transport/reported_call.hpp"
#include "protocol/wire/codec.hpp"

namespace gpushm::broker_detail {

namespace {

using clock = std::chrono::steady_clock;

/// Packets sent to one member in a turn: some hundred microseconds.
constexpr int sends_per_turn = 32;
/// Upper bound of events queued for a slow subscriber; beyond it, it is owed a resync.
constexpr std::size_t max_queued_events = 1024;
/// Bytes charged for a sent packet until it is read, in addition to its size: struct sk_buff and
/// rounding.
constexpr std::uint64_t packet_overhead_bytes = 768;
/// Query the kernel for unread bytes when more than this may be unread.
constexpr std::uint64_t unread_step_bytes = 32'768;
/// The same when a request arrives, and as much has been sent since: a system call for several
/// requests.
constexpr std::uint64_t read_step_bytes = 4'096;
/// The recorded bound of descriptors in flight grows in these steps, so that it is rarely recorded.
constexpr std::uint32_t inflight_step = 64;

void owe_resync(connection& connection, std::uint64_t subscription) noexcept {
  auto& owed = connection.lost_subscriptions;
  if (std::find(owed.begin(), owed.end(), subscription) == owed.end() &&
      owed.size() < owed.capacity()) {
    owed.push_back(subscription);
  }
}

/// Returns the charge if they are not sent.
struct unsent_descriptors {
  inflight_charge& from;
  inflight_use what;
  std::uint64_t count;
  unsent_descriptors(inflight_charge& charge, inflight_use use, std::uint64_t descriptors) noexcept
      : from(charge), what(use), count(descriptors) {}
  unsent_descriptors(const unsent_descriptors&) = delete;
  unsent_descriptors& operator=(const unsent_descriptors&) = delete;
  ~unsent_descriptors() { from.release(what, count); }
};

/// Welcome is the first packet.
inflight_use use_of(const lane& lane) noexcept {
  return lane.kind == lane_kind::requests && lane.sent == 0 ? inflight_use::welcome
                                                            : inflight_use::reply;
}

/// Returns the charge for packets that the peer has read.
void settle_unread(lane& lane) {
  if (lane.of.closed || lane.unread_bytes == 0) {
    return;
  }
  const auto actual = static_cast<std::uint64_t>(transport::unread_bytes(lane.socket.get()));
  if (actual == 0) {
    lane.inflight.reset();
  }
  if (actual < lane.unread_bytes) {
    lane.of.held.release(core::resource::memory_bytes, lane.unread_bytes - actual);
    lane.unread_bytes = actual;
  }
  lane.unread_when_queried = lane.unread_bytes;
}

}  // namespace

sender::sender(turn_loop& loop,
               deadlines& late,
               retry_poll& poll,
               connection_ender& ender,
               member_log& log,
               succession::recorder& records,
               std::uint32_t max_inflight_descriptors,
               std::shared_ptr<inflight_budget> inflight)
    : loop_(loop),
      deadlines_(late),
      poll_(poll),
      ender_(ender),
      log_(log),
      recorder_(records),
      max_inflight_descriptors_(max_inflight_descriptors),
      inflight_(std::move(inflight)) {}

void sender::send(connection& connection, prepared packet) noexcept {
  if (!packet.empty()) {
    log_.guarded([&] { queue(connection, packet); });
  }
}

void sender::deliver() noexcept {
  if (is_delivering_) {
    return;  // sending has closed a connection
  }
  is_delivering_ = true;
  // NOLINTNEXTLINE(modernize-loop-convert): more can be added meanwhile
  for (std::size_t i = 0; i < with_replies_.size(); ++i) {
    const std::shared_ptr<connection> to = with_replies_[i];
    log_.guarded([&] {
      to->for_each_lane([&](lane& each) {
        if (!to->closed && each.may_send()) {
          flush_lane(each, true);
        }
      });
      loop_.request_turn(*to);
    });
  }
  with_replies_.clear();
  is_delivering_ = false;
}

void sender::flush_table(connection& connection) noexcept {
  log_.guarded([&] {
    const auto is_queued = [&] {
      const prepared& queued = connection.events->queue;
      return std::any_of(
          queued.begin(), queued.end(), [](const outgoing& each) { return each.is_table(); });
    };
    while (!connection.closed && connection.events && connection.events->may_send() &&
           !recorder_.is_behind() && is_queued()) {
      flush_lane(*connection.events);
    }
    loop_.request_turn(connection);
  });
}

bool sender::takes_event(const connection& connection, std::uint64_t subscription) noexcept {
  const auto& owed = connection.lost_subscriptions;
  return connection.queued_events < max_queued_events &&
         std::find(owed.begin(), owed.end(), subscription) == owed.end();
}

void sender::lose_event(connection& connection, std::uint64_t subscription) noexcept {
  owe_resync(connection, subscription);
  log_.guarded([&] { loop_.request_turn(connection); });
}

void sender::settle_after_request(connection& connection) {
  connection.for_each_lane([](lane& each) {
    if (each.unread_bytes >
        std::min(each.unread_when_queried + read_step_bytes, unread_step_bytes)) {
      settle_unread(each);
    }
  });
}

void sender::queue(connection& connection, prepared& packet) {
  outgoing& one = packet.front();
  lane& on = one.on_event_lane && connection.events ? *connection.events : connection.requests;
  if (connection.closed || on.send_closed) {
    return;
  }
  const std::uint64_t cost = one.cost();
  const bool is_event = one.subscription.has_value();
  if (is_event) {
    // Events are sent in the subscriber's turn and charged within its share, so that the turn of
    // the session that causes them stays short however many subscribers there are.
    if (connection.queued_events >= max_queued_events ||
        !connection.held.try_take(core::resource::memory_bytes, cost)) {
      owe_resync(connection, *one.subscription);
      loop_.request_turn(connection);
      return;
    }
    ++connection.queued_events;
  } else {
    connection.held.charge(core::resource::memory_bytes, cost);
    connection.queued_replies += one.is_reply ? 1U : 0U;
  }
  record(on, one, on.queued);
  on.queue.splice(on.queue.end(), packet);
  ++on.queued;
  if (is_event) {
    record_events_later(connection);
  } else if (on.kind == lane_kind::events) {
    connection.record_events();
  }
  if (!is_event) {
    try {
      if (with_replies_.empty() || with_replies_.back().get() != &connection) {
        with_replies_.push_back(connection.shared_from_this());
      }
      return;
    } catch (const std::bad_alloc&) {  // sent in its turn
    }
  }
  loop_.request_turn(connection);
}

/// `place`: the number of packets queued before it.
void sender::record(const lane& lane, outgoing& packet, std::uint64_t place) noexcept {
  if (!recorder_.is_on() || packet.subscription) {
    return;
  }
  if (packet.number == 0) {
    packet.number = recorder_.next_packet();
  }
  try {
    records::packet_record record;
    record.session = lane.of.number;
    record.on_event_lane = lane.kind == lane_kind::events;
    record.is_reply = packet.is_reply;
    record.place = place;
    record.bytes = packet.packet.empty() ? wire::encode(packet.late) : packet.packet;
    record.descriptors = packet.ids;
    if (packet.files) {
      record.files_of = packet.files->generation;
      record.metadata_of = packet.metadata ? packet.files->generation : 0;
    }
    recorder_.put(records::key_of(records::kind::packet, packet.number), std::move(record));
  } catch (const std::bad_alloc&) {
    recorder_.fall_behind();
  } catch (const error& why) {  // cannot be encoded, and so not be sent either
    succession::log_about_members(log_level::error, why.what());
  }
}

void sender::record_events_later(connection& connection) noexcept {
  if (!recorder_.is_on() || connection.are_events_unrecorded) {
    return;
  }
  try {
    with_events_.push_back(connection.shared_from_this());
    connection.are_events_unrecorded = true;
  } catch (const std::bad_alloc&) {
    connection.record_events();
  }
}

void sender::record_events() noexcept {
  for (const std::shared_ptr<connection>& each : with_events_) {
    each->are_events_unrecorded = false;
    each->record_events();
  }
  with_events_.clear();
}

void sender::record_queue(connection& connection) noexcept {
  connection.for_each_lane([&](lane& each) {
    std::uint64_t place = each.queued - each.queue.size();
    for (outgoing& packet : each.queue) {
      record(each, packet, place++);
    }
  });
  connection.record_events();
}

outgoing resync_of(std::uint64_t subscription) {
  wire::event resync;
  resync.kind = event_kind::resync;
  outgoing packet;
  packet.packet = wire::encode({subscription, std::move(resync)});
  packet.subscription = subscription;
  packet.is_reply = false;
  packet.on_event_lane = true;
  return packet;
}

void discard_queue(lane& lane) noexcept {
  for (const outgoing& each : lane.queue) {
    if (each.number != 0) {
      lane.of.recorded_in.erase(records::key_of(records::kind::packet, each.number));
    }
    if (each.own) {
      lane.of.recorded_in.forget(each.own->id);
    }
  }
  lane.queue.clear();
}

/// Charges descriptors that are about to be sent. Returns false if there are too many in flight.
bool sender::take_inflight(lane& lane, inflight_use use, std::uint32_t count) noexcept {
  const auto take = [&] {
    return lane.inflight.try_take(inflight_, lane.of.principal, lane.socket.get(), use, count);
  };
  if (take()) {
    return true;
  }
  inflight_->settle();
  return take();
}

/// Before they are sent. Returns false if that cannot be recorded now: the recorder is behind.
bool sender::record_inflight(lane& lane, std::uint32_t count) noexcept {
  const std::uint32_t most = lane.inflight_descriptors + count;
  if (most > lane.inflight_bound) {
    lane.inflight_bound = (most / inflight_step + 1) * inflight_step;
    lane.of.record();
    recorder_.commit();
  }
  return !recorder_.is_behind();
}

/// Each predecessor has kept them within the shares, so the bounds are cut to those: members that
/// have read most of theirs must not leave others without any.
void sender::restore_inflight(lane& lane) noexcept {
  if (lane.unread_bytes == 0) {
    return;
  }
  lane.inflight_descriptors = std::min(lane.inflight_bound, max_inflight_descriptors_);
  std::uint32_t count = lane.inflight_descriptors;
  while (count != 0 && !take_inflight(lane, inflight_use::reply, count)) {
    count /= 2;
  }
}

/// Returns false if the packet must wait or the lane is closed for sending.
bool sender::try_send(lane& lane, const outgoing& packet) {
  const auto count = static_cast<std::uint32_t>(packet.descriptors.size());
  // A table is the only one of this broker's life; a client that is stopped is not dropped for it.
  if (count != 0 && lane.inflight_descriptors + count > max_inflight_descriptors_ &&
      !packet.is_table()) {
    if (transport::unread_bytes(lane.socket.get()) != 0) {
      return wait_for_reader(lane);
    }
    lane.inflight_descriptors = 0;
    lane.inflight.reset();
  }
  if (lane.unread_bytes > unread_step_bytes) {
    settle_unread(lane);
    // Unread packets occupy this process's memory.
    if (lane.unread_bytes > unread_step_bytes &&
        !lane.of.held.within_share(core::resource::memory_bytes)) {
      return wait_for_reader(lane);
    }
  }
  if (count != 0 && !record_inflight(lane, count)) {
    return false;
  }
  const inflight_use use = use_of(lane);
  if (!take_inflight(lane, use, count)) {
    return wait_for_reader(lane);
  }
  try {
    unsent_descriptors charged(lane.inflight, use, count);
    const std::vector<std::byte> late =
        packet.packet.empty() ? packet.encode() : std::vector<std::byte>();
    const std::vector<std::byte>& bytes = packet.packet.empty() ? late : packet.packet;
    // The subject of a recorded packet is its number.
    const std::uint64_t subject =
        packet.number != 0 ? packet.number : records::event_of(lane.of.number, lane.sent);
    const transport::send_result result = transport::send_reported(
        recorder_.call(), subject, lane.socket.get(), bytes, packet.descriptors);
    if (result != transport::send_result::sent) {
      recorder_.call().clear();
    }
    switch (result) {
      case transport::send_result::sent: {
        const std::uint64_t cost = bytes.size() + packet_overhead_bytes;
        lane.inflight_descriptors += count;
        charged.count = 0;
        lane.unread_bytes += cost;
        lane.of.held.charge(core::resource::memory_bytes, cost);
        return true;
      }
      case transport::send_result::would_block:
        return wait_for_room(lane);
      case transport::send_result::closed:
        end_sending(lane);
        return false;
    }
  } catch (const error& why) {
    if (why.code() == errc::too_many_descriptors) {
      return wait_for_reader(lane);  // the kernel's limit for this uid is reached
    }
    log_.dropped(lane.of, why.what());
  }
  ender_.close(lane.of);
  return false;
}

/// It is sent, or never will be.
void sender::forget_first(lane& lane) {
  connection& to = lane.of;
  const outgoing& first = lane.queue.front();
  if (first.number != 0) {
    recorder_.erase(records::key_of(records::kind::packet, first.number));
  }
  if (first.own) {
    recorder_.forget(first.own->id);
  }
  to.queued_events -= first.subscription ? 1U : 0U;
  to.queued_replies -= !first.subscription && first.is_reply ? 1U : 0U;
  to.held.release(core::resource::memory_bytes, first.cost());
  lane.queue.pop_front();
}

/// The client has closed the lane, possibly after a goodbye: packets that it sent are still read.
void sender::end_sending(lane& lane) {
  lane.send_closed = true;
  while (!lane.queue.empty()) {
    forget_first(lane);
  }
  deadlines_.reader_is_done(lane);
  lane.of.end(lane);
  loop_.request_turn(lane.of);
}

/// Waits for room in the socket, which the event loop reports.
bool sender::wait_for_room(lane& lane) {
  deadlines_.expect_reader(lane, clock::now());
  if (!lane.waits_for_room) {
    lane.events.async_wait(asio::posix::stream_descriptor::wait_write,
                           [this, &lane, kept = lane.of.shared_from_this()](asio::error_code code) {
                             lane.waits_for_room = false;
                             if (!code && !kept->closed) {
                               lane.blocked = false;
                               loop_.request_turn(*kept);
                             }
                           });
    lane.waits_for_room = true;
  }
  lane.blocked = true;  // last: if the wait could not be started, the packet is retried
  return false;
}

/// Waits until the peer reads descriptors or memory, for which there is no event. A peer that has
/// read everything waits for others, and is not closed for that.
bool sender::wait_for_reader(lane& lane) {
  if (lane.of.dropped || transport::unread_bytes(lane.socket.get()) != 0) {
    deadlines_.expect_reader(lane, clock::now());
  } else {
    deadlines_.reader_is_done(lane);
  }
  poll_.later(lane.of);
  lane.blocked = true;
  return false;
}

void sender::flush(connection& connection) {
  connection.for_each_lane([&](lane& each) {
    if (!connection.closed && each.may_send()) {
      flush_lane(each);
    }
  });
  if (connection.closed) {
    return;
  }
  if (connection.dropped && !connection.has_queued()) {
    ender_.close(connection);
    return;
  }
  if (connection.may_resync() && connection.events->queue.empty()) {
    try {
      queue_resyncs(connection);
    } catch (const std::bad_alloc&) {  // still owed
      static_cast<void>(wait_for_reader(*connection.events));
    }
  }
}

void sender::flush_lane(lane& lane, bool only_replies) {
  for (int i = 0; i < sends_per_turn && !lane.queue.empty() && !recorder_.is_behind(); ++i) {
    if (only_replies && lane.queue.front().subscription) {
      return;
    }
    if (!try_send(lane, lane.queue.front())) {
      return;
    }
    forget_first(lane);
    ++lane.sent;
    if (lane.kind == lane_kind::events) {
      lane.of.record_events();
    }
    recorder_.commit_call();
    deadlines::reader_resumed(lane, clock::now());
  }
  if (lane.queue.empty()) {
    deadlines_.reader_is_done(lane);
  }
}

void sender::queue_resyncs(connection& connection) {
  prepared resyncs;
  for (const std::uint64_t subscription : connection.lost_subscriptions) {
    resyncs.push_back(resync_of(subscription));
  }
  connection.lost_subscriptions.clear();
  connection.queued_events += resyncs.size();
  for (const outgoing& each : resyncs) {  // at most one per subscription, even beyond its share
    connection.held.charge(core::resource::memory_bytes, each.cost());
  }
  connection.events->queued += resyncs.size();
  connection.events->queue.splice(connection.events->queue.end(), resyncs);
  connection.record_events();
  recorder_.commit();
}

}  // namespace gpushm::broker_detail
