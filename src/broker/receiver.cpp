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
                   porter& doors,
                   closer& files,
                   turn_loop& loop,
                   deadlines& late,
                   retry_poll& poll,
                   sender& answers,
                   connection_ender& ender,
                   member_log& log)
    : hub_(sessions),
      porter_(doors),
      closer_(files),
      loop_(loop),
      deadlines_(late),
      poll_(poll),
      sender_(answers),
      ender_(ender),
      log_(log),
      porter_events_(io, doors.descriptor()) {}

void receiver::read_last(connection& from) {
  if (--*from.last_packets < 0 || from.dropped || from.at_porter_since ||
      peek_packet(from.socket.get()) != next_packet::plain || !receive(from)) {
    ender_.close(from);
  }
}

void receiver::watch(connection& of) {
  if (of.wait_armed || of.closed) {
    return;
  }
  of.wait_armed = true;
  of.events.async_wait(asio::posix::stream_descriptor::wait_read,
                       [this, kept = of.shared_from_this()](asio::error_code code) {
                         kept->wait_armed = false;
                         if (code || kept->closed) {
                           return;
                         }
                         kept->readable = true;
                         loop_.ask(*kept);
                       });
}

void receiver::read_one(connection& from) {
  const next_packet next = peek_packet(from.socket.get());
  if (next == next_packet::with_descriptors) {
    if (porter_.fetch(from.number, from.principal.key, from.socket.get())) {
      deadlines_.expect_porter(from, clock::now());
    } else {
      from.readable = false;  // it has too much to do: look again soon
      poll_.later(from);
    }
  } else if (next == next_packet::none || (!receive(from) && !from.closed)) {
    from.readable = false;
    watch(from);
  }
}

/// One packet without descriptors; false when there is none, or the connection was closed.
bool receiver::receive(connection& from) {
  auto got = transport::receive_guarded(from.socket.get(), buffer_);
  switch (got.status) {
    case transport::receive_status::would_block:
      return false;
    case transport::receive_status::closed:
      ender_.close(from);
      return false;
    case transport::receive_status::truncated:
      hub_.receive_truncated(from);
      return false;
    case transport::receive_status::descriptors_lost:
      hub_.receive_without_descriptors(from, got.packet);
      break;
    case transport::receive_status::packet:
      hub_.receive(from, got.packet, std::move(got.descriptors), clock::now());
      break;
  }
  ++received_;
  sender_.settle_after_request(from);
  return !from.closed;
}

void receiver::start() {
  porter_events_.async_wait(asio::posix::stream_descriptor::wait_read,
                            [this](asio::error_code code) {
                              if (code) {
                                return;
                              }
                              while (auto parcel = porter_.next()) {
                                log_.guarded([&] { take(*parcel); });
                              }
                              start();
                            });
}

void receiver::take(porter::parcel& parcel) {
  auto* const found = static_cast<connection*>(hub_.find(parcel.session));
  if (found == nullptr || found->closed) {
    closer_.close(std::move(parcel.descriptors));
    return;
  }
  connection& from = *found;
  deadlines::porter_is_done(from);
  if (parcel.failed) {
    ender_.close(from);
    return;
  }
  switch (parcel.status) {
    case transport::receive_status::would_block:
      break;
    case transport::receive_status::closed:
      ender_.close(from);
      return;
    case transport::receive_status::truncated:
      hub_.receive_truncated(from);
      break;
    case transport::receive_status::descriptors_lost:
      hub_.receive_without_descriptors(from, parcel.packet);
      break;
    case transport::receive_status::packet:
      hub_.receive(
          from, parcel.packet, std::move(parcel.descriptors), clock::now(), parcel.foreign);
      break;
  }
  ++received_;
  sender_.settle_after_request(from);
  loop_.ask(from);
}

}  // namespace gpushm::broker_detail
