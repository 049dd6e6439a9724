// SPDX-License-Identifier: Apache-2.0
#include "support/raw_client.hpp"

#include <fcntl.h>
#include <sys/mman.h>

#include "base/syscall.hpp"
#include "process/deadline.hpp"
#include "process/harness_error.hpp"
#include "transport/packet_socket.hpp"
#include "wire/codec.hpp"

namespace gpushm_tests {

namespace transport = gpushm::transport;
namespace wire = gpushm::wire;
using gpushm::base::checked;
using gpushm::base::unique_fd;
using gpushm_testing::harness_error;

raw_client::raw_client(const std::string& socket_path)
    : socket_(transport::connect_packet_socket(socket_path, std::chrono::seconds(5))) {}

raw_client raw_client::greeted(const std::string& socket_path) {
  raw_client made(socket_path);
  auto answer = made.ask(wire::hello{});
  if (!answer.message || !std::holds_alternative<wire::welcome>(answer.message->body) ||
      answer.descriptors.size() != 1) {
    throw harness_error("the broker did not welcome the raw client");
  }
  made.state_table_ = std::move(answer.descriptors.front());
  return made;
}

bool raw_client::send(wire::body body, std::span<const int> descriptors) {
  return send_bytes(wire::encode({++last_id_, std::move(body)}), descriptors);
}

bool raw_client::send_bytes(std::span<const std::byte> packet, std::span<const int> descriptors) {
  const auto deadline = gpushm_testing::deadline_after(std::chrono::seconds(5));
  while (true) {
    const auto result = transport::send_packet(socket_.get(), packet, descriptors);
    if (result != transport::send_result::would_block) {
      return result == transport::send_result::sent;
    }
    const std::chrono::milliseconds left(gpushm_testing::milliseconds_until(deadline));
    if (!transport::wait_writable(socket_.get(), left)) {
      return false;
    }
  }
}

raw_answer raw_client::receive(std::chrono::milliseconds timeout) {
  raw_answer answer;
  if (!transport::wait_readable(socket_.get(), gpushm_testing::patience(timeout))) {
    return answer;
  }
  std::vector<std::byte> buffer(wire::max_packet_bytes);
  auto got = transport::receive_packet(socket_.get(), buffer);
  answer.closed = got.status == transport::receive_status::closed;
  answer.descriptors = std::move(got.descriptors);
  if (got.status == transport::receive_status::packet) {
    answer.message = wire::decode(got.packet);
    if (!answer.message) {
      throw harness_error("the broker sent a packet that cannot be decoded");
    }
  }
  return answer;
}

raw_answer raw_client::ask(wire::body body, std::span<const int> descriptors) {
  send(std::move(body), descriptors);
  return receive();
}

bool raw_client::closed_within(std::chrono::milliseconds timeout) {
  const auto deadline = gpushm_testing::deadline_after(timeout);
  while (gpushm_testing::clock::now() < deadline) {
    const auto answer =
        receive(std::chrono::milliseconds(gpushm_testing::milliseconds_until(deadline)));
    if (answer.closed) {
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
  wire::reserve wanted;
  wanted.name = name;
  wanted.size_bytes = std::uint64_t{chunk_count} * 4096U;
  wanted.allocated_bytes = wanted.size_bytes;
  wanted.chunk_count = chunk_count;
  return wanted;
}

std::optional<gpushm::errc> failure_of(const raw_answer& answer) {
  if (!answer.message) {
    return std::nullopt;
  }
  const auto* failure = std::get_if<wire::failure>(&answer.message->body);
  return failure != nullptr ? std::optional(failure->code) : std::nullopt;
}

}  // namespace gpushm_tests
