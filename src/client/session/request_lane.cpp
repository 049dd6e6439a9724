// SPDX-License-Identifier: Apache-2.0
#include "client/session/request_lane.hpp"

#include "base/process/deadline.hpp"
#include "protocol/transport/packet_socket.hpp"
#include "protocol/wire/codec.hpp"

namespace gpushm::client_detail {

namespace {

/// How long a receiver polls the socket before it sleeps: a reply usually takes less than twice
/// the time to wake a thread.
constexpr std::chrono::microseconds spin{30};

}  // namespace

received_packet receive_one(int socket, std::span<std::byte> buffer) {
  using kind = received_packet::kind;
  auto got = transport::receive_guarded(socket, buffer);
  switch (got.status) {
    case transport::receive_status::would_block:
      return {kind::nothing, {}};
    case transport::receive_status::closed:
    case transport::receive_status::truncated:
      return {kind::closed, {}};
    case transport::receive_status::packet:
    case transport::receive_status::descriptors_lost:
      break;
  }
  auto message = wire::decode(got.packet);
  if (!message) {
    return {kind::malformed, {}};
  }
  return {kind::packet,
          packet{std::move(*message),
                 std::move(got.descriptors),
                 got.status == transport::receive_status::descriptors_lost}};
}

request_lane::request_lane(base::guarded_fd socket) : socket_(std::move(socket)) {}

request_lane::turn request_lane::take_turn(steady_time deadline) {
  std::unique_lock lock(mutex_);
  if (!free_.wait_until(lock, deadline, [&] { return !taken_; })) {
    return {};
  }
  taken_ = true;
  return turn(*this);
}

void request_lane::end_turn() noexcept {
  const std::lock_guard lock(mutex_);
  taken_ = false;
  free_.notify_one();
}

received_packet request_lane::receive(steady_time deadline) {
  const auto stop_spinning = std::chrono::steady_clock::now() + spin;
  for (;;) {
    auto got = receive_one(socket_.get(), buffer_.bytes());
    if (got.what != received_packet::kind::nothing) {
      return got;
    }
    const auto now = std::chrono::steady_clock::now();
    if (now < stop_spinning) {
      continue;
    }
    if (now >= deadline || !transport::wait_readable(socket_.get(), base::time_left(deadline))) {
      return got;
    }
  }
}

}  // namespace gpushm::client_detail
