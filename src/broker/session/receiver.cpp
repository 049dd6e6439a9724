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
bool is_hello(const transport::peeked& got) noexcept {
  if (got.status != transport::receive_status::packet) {
    return false;
  }
  try {
    const auto message = wire::decode(got.packet);
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
                   recorder& records)
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

void receiver::read_last(connection& from) {
  lane& on = from.requests;
  if (--*from.last_packets < 0 || from.dropped || on.receiving_descriptors_since ||
      !remove_handled(on)) {
    ender_.close(from);
    return;
  }
  const transport::peeked got = transport::peek_bytes(on.socket.get(), buffer_);
  if (got.status == transport::receive_status::packet && !got.has_descriptors) {
    handle(on, got);
  } else {
    ender_.close(from);
  }
}

void receiver::watch(lane& on) {
  if (on.wait_armed || on.of.closed) {
    return;
  }
  on.wait_armed = true;
  on.events.async_wait(asio::posix::stream_descriptor::wait_read,
                       [this, &on, kept = on.of.shared_from_this()](asio::error_code code) {
                         on.wait_armed = false;
                         if (code || kept->closed) {
                           return;
                         }
                         on.readable = true;
                         loop_.request_turn(*kept);
                       });
}

void receiver::read_one(lane& on) {
  connection& from = on.of;
  const step_kind kind =
      on.kind == lane_kind::events ? step_kind::receive_event : step_kind::receive;
  const recorder::step named(recorder_, {kind, from.number});
  if (!remove_handled(on)) {
    return;
  }
  if (std::exchange(on.is_put_off, false)) {
    take(on, std::static_pointer_cast<received_packet>(on.peeked));
    return;
  }
  const transport::peeked got = transport::peek_bytes(on.socket.get(), buffer_);
  if (!from.greeted && on.kind == lane_kind::requests && is_hello(got) &&
      !is_event_lane_ready(from)) {
    wait_for_keeper(on);
    return;
  }
  if (got.has_descriptors && on.kind == lane_kind::events) {
    on.readable = false;  // they are closed with the socket
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
    if (taken && descriptor_receiver_.fetch(from.number, from.principal, on.socket.get(), *taken)) {
      deadlines_.expect_descriptors(on, clock::now());
    } else {
      on.readable = false;  // the descriptor receiver is busy: retry soon
      deadlines_.expect_receiver(on, clock::now());
      poll_.later(from);
    }
    return;
  }
  if (got.status == transport::receive_status::packet) {
    handle(on, got);
    return;
  }
  if (got.status == transport::receive_status::truncated) {
    hub_.receive_truncated(from);
  } else if (got.status == transport::receive_status::closed) {
    from.end(on);
  }
  on.readable = false;
  if (!on.over && !from.closed) {
    watch(on);
  }
}

/// Before its Hello is handled. Returns false while the keeper is busy; if it is behind, or there
/// are no descriptors left, Hello is refused.
bool receiver::is_event_lane_ready(connection& of) {
  try {
    of.prepare_events();
    return true;
  } catch (const keeper_busy&) {
    return false;
  } catch (const error&) {
    return true;
  } catch (const std::bad_alloc&) {
    return true;
  }
}

void receiver::wait_for_keeper(lane& on) {
  on.readable = false;
  keeper_poll_.later(on.of);
}

/// A packet without descriptors, the first one in the socket.
void receiver::handle(lane& on, const transport::peeked& got) {
  const recorder::step handled(recorder_, {step_kind::request, on.of.number});
  begin_handling(on);
  if (hub_.receive(on.of, got.packet, {}, clock::now(), 0, on.kind)) {
    finish_handling(on);
  } else {
    on.handled = false;
    wait_for_keeper(on);
  }
}

/// The hub records this with the packet's effects.
void receiver::begin_handling(lane& on) {
  on.handled = true;
  recorder_.mark(connection::key_of_handled(on));
}

void receiver::finish_handling(lane& on) {
  ++received_;
  static_cast<void>(remove_handled(on));
  sender_.settle_after_request(on.of);
}

/// Removes the first packet, if it has been handled. Returns false if nothing can be received now.
bool receiver::remove_handled(lane& on) {
  if (on.of.closed || recorder_.is_behind()) {
    return false;
  }
  if (!on.handled) {
    return true;
  }
  const auto result = transport::remove_reported(
      recorder_.call(),
      records::first_packet_of(on.of.number, on.kind == lane_kind::events),
      on.socket.get());
  on.handled = false;
  recorder_.erase(connection::key_of_handled(on));
  recorder_.commit_call();
  on.peeked.reset();
  if (result != transport::remove_result::removed) {
    log_.dropped(on.of, "a packet has left its socket before it was removed");
    ender_.close(on.of);
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
  const recorder::step named(recorder_, {step_kind::watch, got->session});
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
  auto* const found = static_cast<connection*>(hub_.find(got->session));
  if (found == nullptr || found->closed) {
    hub_.discard(std::move(got->descriptors));
    return;
  }
  connection& from = *found;
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

void receiver::take(lane& on, const std::shared_ptr<received_packet>& got) {
  connection& from = on.of;
  on.peeked = got;
  const recorder::step handled(recorder_, {step_kind::request, from.number});
  switch (got->status) {
    case transport::receive_status::would_block:  // its job was lost: retry soon
      on.readable = false;
      poll_.later(from);
      break;
    case transport::receive_status::closed:
      break;
    case transport::receive_status::truncated:
      hub_.receive_truncated(from);
      break;
    case transport::receive_status::descriptors_lost:
      begin_handling(on);
      hub_.receive_without_descriptors(from, got->packet, got->is_keeper_behind);
      finish_handling(on);
      break;
    case transport::receive_status::packet:
      begin_handling(on);
      if (!hub_.receive(
              from, got->packet, std::move(got->descriptors), clock::now(), got->foreign)) {
        on.handled = false;
        on.is_put_off = true;
        wait_for_keeper(on);
        return;
      }
      finish_handling(on);
      break;
  }
  if (!on.handled) {
    on.peeked.reset();
  }
}

}  // namespace gpushm::broker_detail
