// SPDX-License-Identifier: Apache-2.0
#include "tests/support/raw_session/raw_session.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <limits>

#include "base/files/syscall.hpp"
#include "protocol/wire/codec.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/harness_error.hpp"

namespace gpushm_testing {

namespace transport = gpushm::transport;
namespace wire = gpushm::wire;
using gpushm::base::checked;
using gpushm::base::unique_fd;

raw_session::raw_session(const std::string& socket_path)
    : socket_(transport::connect_packet_socket(socket_path, std::chrono::seconds(5))) {}

raw_session raw_session::greeted(const std::string& socket_path) {
  raw_session created(socket_path);
  wire::hello hello;
  hello.known_kinds = wire::known_kinds;
  hello.takes_tables = true;
  created.greet(hello);
  return created;
}

void raw_session::greet(const wire::hello& hello, std::span<const int> descriptors) {
  auto reply = request(hello, descriptors);
  if (!reply.message || !std::holds_alternative<wire::welcome>(reply.message->body) ||
      reply.descriptors.size() != 2) {
    throw harness_error("the broker did not accept the hello of the raw session");
  }
  state_table_ = std::move(reply.descriptors[0]);
  events_ = std::move(reply.descriptors[1]);
}

namespace {

/// Blocks at most five seconds.
bool send_on(int socket, std::span<const std::byte> packet, std::span<const int> descriptors) {
  const auto deadline = deadline_after(std::chrono::seconds(5));
  while (true) {
    const auto result = transport::send_packet(socket, packet, descriptors);
    if (result != transport::send_result::would_block) {
      return result == transport::send_result::sent;
    }
    const std::chrono::milliseconds left(milliseconds_until(deadline));
    if (!transport::wait_writable(socket, left)) {
      return false;
    }
  }
}

}  // namespace

bool raw_session::send(wire::body body, std::span<const int> descriptors) {
  return send_as(++last_id_, std::move(body), descriptors);
}

bool raw_session::send_as(std::uint64_t id, wire::body body, std::span<const int> descriptors) {
  const int socket = wire::is_sent_on_event_lane(body) ? events_.get() : socket_.get();
  return send_on(socket, wire::encode({id, std::move(body)}), descriptors);
}

bool raw_session::send_bytes(std::span<const std::byte> packet, std::span<const int> descriptors) {
  return send_on(socket_.get(), packet, descriptors);
}

transport::send_result raw_session::try_send_event(std::span<const std::byte> packet) {
  return transport::send_packet(events_.get(), packet, {});
}

transport::send_result raw_session::try_send(std::span<const std::byte> packet,
                                             std::span<const int> descriptors) {
  try {
    return transport::send_packet(socket_.get(), packet, descriptors);
  } catch (const gpushm::error& refused) {
    if (refused.code() != gpushm::errc::too_many_descriptors) {
      throw;
    }
    return transport::send_result::would_block;
  }
}

raw_reply raw_session::receive(std::chrono::milliseconds timeout) {
  return receive_joined(deadline_after(timeout));
}

/// Any message, whole.
raw_reply raw_session::receive_joined(clock::time_point deadline) {
  raw_reply reply;
  do {
    reply = receive_before(deadline);
    if (body_of<wire::continued>(reply) != nullptr && reply.descriptors.size() == 1) {
      state_table_ = std::move(reply.descriptors.front());
    }
  } while (body_of<wire::continued>(reply) != nullptr);
  return reply;
}

/// Any packet.
raw_reply raw_session::receive_before(clock::time_point deadline) {
  raw_reply reply;
  std::array<pollfd, 2> waits{{{socket_.get(), POLLIN, 0}, {events_.get(), POLLIN, 0}}};
  const int count = gpushm::base::retry([&] {
    constexpr std::int64_t longest = std::numeric_limits<int>::max();
    const auto left = std::clamp<std::int64_t>(milliseconds_until(deadline), 0, longest);
    return ::poll(waits.data(), waits.size(), static_cast<int>(left));
  });
  if (count <= 0) {
    return reply;
  }
  std::vector<std::byte> buffer(wire::max_packet_bytes);
  const int ready = waits[0].revents != 0 ? socket_.get() : events_.get();
  auto got = transport::receive_packet(ready, buffer);
  reply.closed = got.status == transport::receive_status::closed;
  reply.descriptors = std::move(got.descriptors);
  if (got.status == transport::receive_status::packet) {
    reply.message = wire::decode(got.packet);
    if (!reply.message) {
      throw harness_error("the broker sent a packet that cannot be decoded");
    }
  }
  return reply;
}

raw_reply raw_session::request(wire::body body, std::span<const int> descriptors) {
  send(std::move(body), descriptors);
  while (true) {
    auto reply = receive();
    const bool of_a_lease = body_of<wire::event>(reply) != nullptr && reply.message->id == 0;
    if (!of_a_lease && body_of<wire::waiting>(reply) == nullptr) {
      return reply;
    }
  }
}

bool raw_session::closed_within(std::chrono::milliseconds timeout) {
  const auto deadline = deadline_after(timeout);
  while (clock::now() < deadline) {
    const auto reply = receive_joined(deadline);
    if (reply.closed) {
      return true;
    }
  }
  return false;
}

unique_fd make_chunk(std::uint64_t size_bytes, bool sealed) {
  unique_fd fd(checked("test", {}, "memfd_create", [] {
    return ::memfd_create("gpushm-test-chunk", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  }));
  checked("test", {}, "fallocate", [&] {
    return ::fallocate(fd.get(), 0, 0, static_cast<off_t>(size_bytes));
  });
  if (sealed) {
    checked("test", {}, "fcntl", [&] {
      return ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    });
  }
  return fd;
}

wire::reserve reserve_pages(const std::string& name, std::uint32_t chunk_count) {
  wire::reserve reservation;
  reservation.name = name;
  reservation.size_bytes = std::uint64_t{chunk_count} * 4096U;
  reservation.allocated_bytes = reservation.size_bytes;
  reservation.chunk_count = chunk_count;
  return reservation;
}

wire::reserve reserve_exported(const std::string& name) {
  wire::reserve reservation;
  reservation.name = name;
  reservation.size_bytes = 1;
  reservation.allocated_bytes = 1;
  reservation.device.kind = gpushm::device_kind::gpu;
  reservation.device.uuid = "GPU-00000000-0000-0000-0000-000000000000";
  reservation.device.pci_address = "0000:00:00.0";
  reservation.backend = gpushm::backend::cuda_ipc;
  reservation.ticket = {std::byte{'x'}};
  return reservation;
}

std::optional<gpushm::errc> failure_of(const raw_reply& reply) {
  if (!reply.message) {
    return std::nullopt;
  }
  const auto* failure = std::get_if<wire::failure>(&reply.message->body);
  return failure != nullptr ? std::optional(failure->code) : std::nullopt;
}

gpushm::generation publish_segment(raw_session& session,
                                   const wire::reserve& reservation,
                                   std::size_t metadata_bytes) {
  const auto reserved = session.request(reservation);
  const auto* grant = body_of<wire::reserved>(reserved);
  if (grant == nullptr) {
    return 0;
  }
  constexpr std::uint64_t page = 4096;
  for (std::uint32_t first = 0; first < reservation.chunk_count;) {
    const auto count =
        std::min(reservation.chunk_count - first, std::uint32_t{gpushm::wire::max_batch});
    std::vector<unique_fd> chunks;
    std::vector<int> numbers;
    for (std::uint32_t i = 0; i < count; ++i) {
      numbers.push_back(chunks.emplace_back(make_chunk(page)).get());
    }
    const auto attached = session.request(
        wire::attach{grant->generation, first, std::vector<std::uint64_t>(count, page)}, numbers);
    if (body_of<wire::done>(attached) == nullptr) {
      return 0;
    }
    first += count;
  }
  const auto published = session.request(
      wire::publish{grant->generation, std::vector<std::byte>(metadata_bytes, std::byte{'m'})});
  return body_of<wire::done>(published) != nullptr ? grant->generation : 0;
}

}  // namespace gpushm_testing
