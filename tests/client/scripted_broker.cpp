// SPDX-License-Identifier: Apache-2.0
#include "tests/client/scripted_broker.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "protocol/transport/address.hpp"
#include "protocol/transport/packet_socket.hpp"
#include "protocol/wire/codec.hpp"
#include "protocol/wire/state_table.hpp"

namespace gpushm_tests {

namespace wire = gpushm::wire;
namespace transport = gpushm::transport;
using gpushm::base::unique_fd;

namespace {

constexpr std::uint32_t slots = 64;

}  // namespace

unique_fd scripted_broker::state_table(gpushm::generation first) {
  unique_fd file(::memfd_create("scripted-table", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  std::vector<std::byte> bytes(wire::state_table_bytes(slots));
  wire::state_table_header header{};
  header.magic = wire::state_table_magic;
  header.version = wire::state_table_version;
  header.slots = slots;
  header.owner_futex = 1;
  std::memcpy(bytes.data(), &header, sizeof header);
  for (std::uint32_t slot = 0; slot < slots; ++slot) {
    const auto word = wire::make_slot_word(first + slot, wire::slot_state::live);
    std::memcpy(
        bytes.data() + wire::state_table_words_offset + slot * sizeof word, &word, sizeof word);
  }
  EXPECT_EQ(::write(file.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  EXPECT_EQ(::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
  return file;
}

namespace {

bool send(int socket, const wire::message& message, const std::vector<unique_fd>& descriptors) {
  std::vector<int> numbers;
  for (const unique_fd& each : descriptors) {
    numbers.push_back(each.get());
  }
  const auto packet = wire::encode(message);
  for (;;) {
    switch (transport::send_packet(socket, packet, numbers)) {
      case transport::send_result::sent:
        return true;
      case transport::send_result::closed:
        return false;
      case transport::send_result::would_block:
        static_cast<void>(transport::wait_writable(socket, std::chrono::seconds(1)));
    }
  }
}

}  // namespace

unique_fd scripted_broker::sealed_file(std::size_t bytes) {
  unique_fd file(::memfd_create("scripted-chunk", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(file.get(), static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  return file;
}

scripted_broker::scripted_broker(script replies,
                                 bool reports_releases,
                                 int closed,
                                 bool knows_versions)
    : replies_(std::move(replies)),
      reports_releases_(reports_releases),
      closed_(closed),
      knows_versions_(knows_versions),
      listener_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)),
      stop_(::eventfd(0, EFD_CLOEXEC)) {
  const sockaddr_un address = transport::unix_address("bind", socket_path_);
  EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address),
            0);
  EXPECT_EQ(::listen(listener_.get(), 8), 0);
  thread_ = std::jthread([this] { serve(); });
}

scripted_broker::~scripted_broker() {
  const std::uint64_t one = 1;
  EXPECT_EQ(::write(stop_.get(), &one, sizeof one), static_cast<ssize_t>(sizeof one));
}

void scripted_broker::serve() {
  for (;;) {
    std::array<pollfd, 2> waits{{{listener_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}}};
    if (::poll(waits.data(), waits.size(), -1) < 0 || waits[1].revents != 0) {
      return;
    }
    const unique_fd peer(
        ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (peer && closed_-- <= 0) {
      talk_to(peer.get());
    }
  }
}

void scripted_broker::talk_to(int socket) {
  std::vector<std::byte> buffer(wire::max_packet_bytes);
  unique_fd events;
  for (;;) {
    std::array<pollfd, 3> waits{
        {{socket, POLLIN, 0}, {stop_.get(), POLLIN, 0}, {events.get(), POLLIN, 0}}};
    if (::poll(waits.data(), waits.size(), -1) < 0 || waits[1].revents != 0) {
      return;
    }
    const int ready = waits[0].revents != 0 ? socket : events.get();
    const auto got = transport::receive_packet(ready, buffer);
    if (got.status == transport::receive_status::would_block) {
      continue;
    }
    const auto message =
        got.status == transport::receive_status::packet ? wire::decode(got.packet) : std::nullopt;
    if (!message) {
      return;
    }
    std::vector<reply> replies;
    if (std::holds_alternative<wire::hello>(message->body)) {
      wire::welcome greeting{wire::protocol_version, "scripted", {}, slots, 0, 253, true};
      greeting.knows_versions = knows_versions_;
      reply welcome{{0, greeting}};
      table_ = state_table();
      welcome.descriptors.emplace_back(::fcntl(table_.get(), F_DUPFD_CLOEXEC, 0));
      auto pair = transport::connected_pair();
      events = std::move(pair.first);
      welcome.descriptors.push_back(std::move(pair.second));
      replies.push_back(std::move(welcome));
    } else if (!std::holds_alternative<wire::bye>(message->body) &&
               (reports_releases_ || !std::holds_alternative<wire::release>(message->body)) &&
               !std::holds_alternative<wire::report>(message->body)) {
      replies = replies_(*message);
    }
    for (const reply& each : replies) {
      const bool is_late = each.late || std::holds_alternative<wire::event>(each.message.body) ||
                           std::holds_alternative<wire::confirm>(each.message.body);
      if (!send(is_late ? events.get() : socket, each.message, each.descriptors) ||
          each.then_close) {
        return;
      }
    }
  }
}

}  // namespace gpushm_tests
