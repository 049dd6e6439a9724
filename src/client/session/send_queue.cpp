// SPDX-License-Identifier: Apache-2.0
#include "client/session/send_queue.hpp"

#include <utility>

#include "protocol/wire/codec.hpp"

namespace gpushm::client_detail {

using transport::send_result;

namespace {

/// The kernel reports a Unix socket as writable while at most a quarter of its buffer is used.
bool has_room(int socket) {
  return transport::wait_writable(socket, std::chrono::milliseconds(0));
}

}  // namespace

send_result send_queue::flush_packets() {
  if (socket_ == -1) {
    return send_result::closed;
  }
  while (!packets_.empty()) {
    const send_result result = transport::send_packet(socket_, packets_.front(), {});
    if (result != send_result::sent) {
      return result;
    }
    packets_.pop_front();
  }
  return send_result::sent;
}

send_result send_queue::flush_releases(bool only_with_room) {
  while (!releases_.empty()) {
    if (only_with_room && !has_room(socket_)) {
      return send_result::would_block;
    }
    const auto first = releases_.begin();
    const auto packet = wire::encode(
        {0, wire::release{first->first, first->second.count, first->second.never_mapped}});
    const send_result result = transport::send_packet(socket_, packet, {});
    if (result != send_result::sent) {
      return result;
    }
    releases_.erase(first);
  }
  return send_result::sent;
}

void send_queue::drop() noexcept {
  packets_.clear();
  releases_.clear();
}

send_result send_queue::try_send(std::span<const std::byte> packet,
                                 std::span<const int> descriptors) {
  const std::lock_guard lock(mutex_);
  send_result result = flush_packets();
  if (result == send_result::sent) {
    result = flush_releases(false);
  }
  if (result == send_result::sent) {
    result = transport::send_packet(socket_, packet, descriptors);
  }
  if (result == send_result::closed) {
    drop();
  }
  return result;
}

bool send_queue::push(std::vector<std::byte> packet) {
  const std::lock_guard lock(mutex_);
  if (packets_.size() >= max_packets) {
    return true;
  }
  packets_.push_back(std::move(packet));
  if (flush_packets() == send_result::closed) {
    drop();
  }
  return is_pending();
}

bool send_queue::release(gpushm::generation generation, std::uint32_t count, bool never_mapped) {
  const std::lock_guard lock(mutex_);
  kept_release& kept = releases_[generation];
  kept.count += count;
  kept.never_mapped = kept.never_mapped && never_mapped;
  send_result result = flush_packets();
  if (result == send_result::sent) {
    result = flush_releases(true);
  }
  if (result == send_result::closed) {
    drop();
  }
  return is_pending();
}

bool send_queue::flush() {
  const std::lock_guard lock(mutex_);
  send_result result = flush_packets();
  if (result == send_result::sent) {
    result = flush_releases(true);
  }
  if (result == send_result::closed) {
    drop();
  }
  return is_pending();
}

bool send_queue::pending() const {
  const std::lock_guard lock(mutex_);
  return is_pending();
}

void send_queue::clear() noexcept {
  const std::lock_guard lock(mutex_);
  drop();
}

void send_queue::close() noexcept {
  const std::lock_guard lock(mutex_);
  socket_ = -1;
  drop();
}

}  // namespace gpushm::client_detail
