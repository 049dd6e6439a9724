// SPDX-License-Identifier: Apache-2.0
#include "broker/receiver.hpp"

#include <chrono>
#include <utility>

#include "transport/packet_socket.hpp"

namespace gpushm::broker_detail {

namespace {

using clock = std::chrono::steady_clock;

}  // namespace

receiver::receiver(asio::io_context& io,
                   hub& sessions,
                   descriptor_receiver& descriptors,
                   closer& files,
                   turn_loop& loop,
                   deadlines& late,
                   retry_poll& poll,
                   sender& answers,
                   connection_ender& ender,
                   member_log& log)
    : hub_(sessions),
      descriptor_receiver_(descriptors),
      closer_(files),
      loop_(loop),
      deadlines_(late),
      poll_(poll),
      sender_(answers),
      ender_(ender),
      log_(log),
      receiver_events_(io, descriptors.descriptor()) {}

void receiver::read_last(connection& from) {
  lane& on = from.requests;
  if (--*from.last_packets < 0 || from.dropped || on.receiving_descriptors_since ||
      peek_packet(on.socket.get()) != next_packet::plain || !receive(on)) {
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
  const next_packet next = peek_packet(on.socket.get());
  if (next == next_packet::with_descriptors && on.kind == lane_kind::events) {
    on.readable = false;  // they are closed with the socket
    hub_.violate(from, 0, "descriptors received on the event lane");
  } else if (next == next_packet::with_descriptors) {
    if (descriptor_receiver_.fetch(from.number, from.principal.key, on.socket.get())) {
      deadlines_.expect_descriptors(on, clock::now());
    } else {
      on.readable = false;  // the descriptor receiver is busy: retry soon
      poll_.later(from);
    }
  } else if (next == next_packet::none || (!receive(on) && !from.closed)) {
    on.readable = false;
    if (!on.over) {
      watch(on);
    }
  }
}

/// Receives one packet without descriptors. Returns false if there is none or the connection was
/// closed.
bool receiver::receive(lane& on) {
  connection& from = on.of;
  auto got = transport::receive_guarded(on.socket.get(), buffer_);
  switch (got.status) {
    case transport::receive_status::would_block:
      return false;
    case transport::receive_status::closed:
      from.end(on);
      return false;
    case transport::receive_status::truncated:
      hub_.receive_truncated(from);
      return false;
    case transport::receive_status::descriptors_lost:
      hub_.receive_without_descriptors(from, got.packet);
      break;
    case transport::receive_status::packet:
      hub_.receive(from, got.packet, std::move(got.descriptors), clock::now(), 0, on.kind);
      break;
  }
  ++received_;
  sender_.settle_after_request(from);
  return !from.closed;
}

void receiver::start() {
  receiver_events_.async_wait(asio::posix::stream_descriptor::wait_read,
                              [this](asio::error_code code) {
                                if (code) {
                                  return;
                                }
                                while (auto got = descriptor_receiver_.next()) {
                                  log_.guarded([&] { take(*got); });
                                }
                                start();
                              });
}

void receiver::take(descriptor_receiver::received_packet& got) {
  auto* const found = static_cast<connection*>(hub_.find(got.session));
  if (found == nullptr || found->closed) {
    closer_.close(std::move(got.descriptors));
    return;
  }
  connection& from = *found;
  deadlines::descriptors_received(from.requests);
  if (got.failed) {
    ender_.close(from);
    return;
  }
  switch (got.status) {
    case transport::receive_status::would_block:
      break;
    case transport::receive_status::closed:
      ender_.close(from);
      return;
    case transport::receive_status::truncated:
      hub_.receive_truncated(from);
      break;
    case transport::receive_status::descriptors_lost:
      hub_.receive_without_descriptors(from, got.packet);
      break;
    case transport::receive_status::packet:
      hub_.receive(from, got.packet, std::move(got.descriptors), clock::now(), got.foreign);
      break;
  }
  ++received_;
  sender_.settle_after_request(from);
  loop_.request_turn(from);
}

}  // namespace gpushm::broker_detail
