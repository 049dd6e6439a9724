// SPDX-License-Identifier: Apache-2.0
#include "broker/session/receiver.hpp"

#include <chrono>
#include <new>
#include <optional>
#include <utility>
#include <variant>

#include "protocol/transport/packet_socket.hpp"
#include "protocol/wire/codec.hpp"
#include "protocol/wire/messages.hpp"

namespace gpushm::broker_detail {

namespace {

using clock = std::chrono::steady_clock;

/// Who sends anything else, or nothing, costs no event lane.
bool is_hello(const transport::peeked& peeked) noexcept {
  if (peeked.status != transport::receive_status::packet) {
    return false;
  }
  try {
    const auto message = wire::decode(peeked.packet);
    return message && std::holds_alternative<wire::hello>(message->body);
  } catch (const std::bad_alloc&) {
    return true;
  }
}

}  // namespace

receiver::receiver(asio::io_context& io,
                   hub& sessions,
                   descriptor_receiver& descriptors,
                   turn_loop& loop,
                   deadlines& late,
                   retry_poll& poll,
                   retry_poll& keeper_poll,
                   sender& replies,
                   connection_ender& ender,
                   member_log& log,
                   succession::recorder& records)
    : hub_(sessions),
      descriptor_receiver_(descriptors),
      loop_(loop),
      deadlines_(late),
      poll_(poll),
      keeper_poll_(keeper_poll),
      sender_(replies),
      ender_(ender),
      log_(log),
      recorder_(records),
      receiver_events_(io, descriptors.descriptor()) {}

void receiver::read_last(connection& connection) {
  lane& on = connection.requests;
  if (--*connection.last_packets < 0 || connection.dropped || on.receiving_descriptors_since ||
      !remove_handled(on)) {
    ender_.close(connection);
    return;
  }
  const transport::peeked got = transport::peek_bytes(on.socket.get(), buffer_);
  if (got.status == transport::receive_status::packet && !got.has_descriptors) {
    handle(on, got);
  } else {
    ender_.close(connection);
  }
}

void receiver::watch(lane& lane) {
  if (lane.wait_armed || lane.of.closed) {
    return;
  }
  lane.wait_armed = true;
  lane.events.async_wait(asio::posix::stream_descriptor::wait_read,
                         [this, &lane, kept = lane.of.shared_from_this()](asio::error_code code) {
                           lane.wait_armed = false;
                           if (code || kept->closed) {
                             return;
                           }
                           lane.readable = true;
                           loop_.request_turn(*kept);
                         });
}

void receiver::read_one(lane& lane) {
  connection& from = lane.of;
  const succession::step_kind kind = lane.kind == lane_kind::events
                                         ? succession::step_kind::receive_event
                                         : succession::step_kind::receive;
  const succession::recorder::step named(recorder_, {kind, from.number});
  if (!remove_handled(lane)) {
    return;
  }
  if (std::exchange(lane.is_put_off, false)) {
    take(lane, std::static_pointer_cast<received_packet>(lane.peeked));
    return;
  }
  const transport::peeked got = transport::peek_bytes(lane.socket.get(), buffer_);
  if (!from.greeted && lane.kind == lane_kind::requests && is_hello(got) &&
      !is_event_lane_ready(from)) {
    wait_for_keeper(lane);
    return;
  }
  if (got.has_descriptors && lane.kind == lane_kind::events) {
    lane.readable = false;  // they are closed with the socket
    hub_.violate(from, 0, "descriptors received on the event lane");
    return;
  }
  if (got.has_descriptors) {
    // Before they are received: until then they are the kernel's.
    std::optional<std::size_t> taken;
    try {
      taken = hub_.descriptors_taken(from, got.packet);
    } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): retried as if it were busy
    }
    if (taken &&
        descriptor_receiver_.fetch(from.number, from.principal, lane.socket.get(), *taken)) {
      deadlines_.expect_descriptors(lane, clock::now());
    } else {
      lane.readable = false;  // the descriptor receiver is busy: retry soon
      deadlines_.expect_receiver(lane, clock::now());
      poll_.later(from);
    }
    return;
  }
  if (got.status == transport::receive_status::packet) {
    handle(lane, got);
    return;
  }
  if (got.status == transport::receive_status::truncated) {
    hub_.receive_truncated(from);
  } else if (got.status == transport::receive_status::closed) {
    from.end(lane);
  }
  lane.readable = false;
  if (!lane.over && !from.closed) {
    watch(lane);
  }
}

/// Before its Hello is handled. Returns false while the keeper is busy; if it is behind, or there
/// are no descriptors left, Hello is refused.
bool receiver::is_event_lane_ready(connection& connection) {
  try {
    connection.prepare_events();
    return true;
  } catch (const succession::keeper_busy&) {
    return false;
  } catch (const error&) {
    return true;
  } catch (const std::bad_alloc&) {
    return true;
  }
}

void receiver::wait_for_keeper(lane& lane) {
  lane.readable = false;
  keeper_poll_.later(lane.of);
}

/// A packet without descriptors, the first one in the socket.
void receiver::handle(lane& lane, const transport::peeked& peeked) {
  const succession::recorder::step handled(recorder_,
                                           {succession::step_kind::request, lane.of.number});
  begin_handling(lane);
  if (hub_.receive(lane.of, peeked.packet, {}, clock::now(), 0, lane.kind)) {
    finish_handling(lane);
  } else {
    lane.handled = false;
    wait_for_keeper(lane);
  }
}

/// The hub records this with the packet's effects.
void receiver::begin_handling(lane& lane) {
  lane.handled = true;
  recorder_.mark(connection::key_of_handled(lane));
}

void receiver::finish_handling(lane& lane) {
  ++received_;
  static_cast<void>(remove_handled(lane));
  sender_.settle_after_request(lane.of);
}

/// Removes the first packet, if it has been handled. Returns false if nothing can be received now.
bool receiver::remove_handled(lane& lane) {
  if (lane.of.closed || recorder_.is_behind()) {
    return false;
  }
  if (!lane.handled) {
    return true;
  }
  const auto result = transport::remove_reported(
      recorder_.call(),
      records::first_packet_of(lane.of.number, lane.kind == lane_kind::events),
      lane.socket.get());
  lane.handled = false;
  recorder_.erase(connection::key_of_handled(lane));
  recorder_.commit_call();
  lane.peeked.reset();
  if (result != transport::remove_result::removed) {
    log_.dropped(lane.of, "a packet has left its socket before it was removed");
    ender_.close(lane.of);
    return false;
  }
  return true;
}

void receiver::start() {
  receiver_events_.async_wait(asio::posix::stream_descriptor::wait_read,
                              [this](asio::error_code code) {
                                if (code) {
                                  return;
                                }
                                while (auto got = descriptor_receiver_.next()) {
                                  log_.guarded([&] { take(std::move(got)); });
                                }
                                start();
                              });
}

void receiver::take(std::unique_ptr<received_packet> whole) {
  const std::shared_ptr<received_packet> got = std::move(whole);
  const succession::recorder::step named(recorder_, {succession::step_kind::watch, got->session});
  if (got->closed != 0) {
    ender_.socket_closed(got->closed);
    return;
  }
  if (got->descriptors.size() < got->kept.size()) {  // some could not be received
    for (const records::descriptor_id each : got->kept) {
      recorder_.forget(each);
    }
    got->kept.clear();
  }
  auto* const hub = static_cast<connection*>(hub_.find(got->session));
  if (hub == nullptr || hub->closed) {
    hub_.discard(std::move(got->descriptors));
    return;
  }
  connection& from = *hub;
  lane& on = from.requests;
  deadlines::descriptors_received(on);
  if (got->failed || got->status == transport::receive_status::closed) {
    hub_.discard(std::move(got->descriptors));
    ender_.close(from);
    return;
  }
  take(on, got);
  loop_.request_turn(from);
}

void receiver::take(lane& lane, const std::shared_ptr<received_packet>& packet) {
  connection& from = lane.of;
  lane.peeked = packet;
  const succession::recorder::step handled(recorder_,
                                           {succession::step_kind::request, from.number});
  switch (packet->status) {
    case transport::receive_status::would_block:  // its job was lost: retry soon
      lane.readable = false;
      poll_.later(from);
      break;
    case transport::receive_status::closed:
      break;
    case transport::receive_status::truncated:
      hub_.receive_truncated(from);
      break;
    case transport::receive_status::descriptors_lost:
      begin_handling(lane);
      hub_.receive_without_descriptors(from, packet->packet, packet->is_keeper_behind);
      finish_handling(lane);
      break;
    case transport::receive_status::packet:
      begin_handling(lane);
      if (!hub_.receive(from,
                        packet->packet,
                        std::move(packet->descriptors),
                        clock::now(),
                        packet->foreign)) {
        lane.handled = false;
        lane.is_put_off = true;
        wait_for_keeper(lane);
        return;
      }
      finish_handling(lane);
      break;
  }
  if (!lane.handled) {
    lane.peeked.reset();
  }
}

}  // namespace gpushm::broker_detail
