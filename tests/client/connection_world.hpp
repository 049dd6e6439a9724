// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "broker/session/connection.hpp"
#include "broker/session/member_log.hpp"
#include "broker/session/turn_loop.hpp"
#include "protocol/transport/packet_socket.hpp"
#include "tests/broker/hub_world.hpp"

namespace gpushm::broker_detail::testing_world {

/// Connections of a hub to peers in this process, each handled in turns. Records the ends of the
/// connections.
class connection_test : public testing::Test, protected connection_ender {
 protected:
  explicit connection_test(const core::limits& bounds = {})
      : hub_(
            {{"default", 42, {1, 2, 3}}, bounds, nullptr, nullptr},
            out_,
            [](void*, std::uint32_t, gpushm::generation, std::optional<segment_state>) {},
            nullptr),
        loop_(
            io_,
            log_,
            [this](connection& connection) { step(connection); },
            [this] { ++rounds_; }) {}
  ~connection_test() override {
    hub_.for_each_session([this](session& session) {
      auto& ended = static_cast<connection&>(session);
      loop_.leave(ended);
      ended.for_each_lane([](lane& each) { each.queue.clear(); });
      ended.held.reset();
    });
  }

  /// The work of a connection in its turn.
  virtual void step(connection& /*connection*/) {}

  void close(connection& gone) override {
    EXPECT_FALSE(gone.closed) << "twice";
    gone.closed = true;
    loop_.leave(gone);
    closed_.push_back(gone.number);
  }

  connection& connect() {
    auto pair = transport::connected_pair();
    const core::session_id number = next_++;
    const auto created =
        std::make_shared<connection>(io_, number, std::move(pair.first), recorder_);
    peers_[number] = std::move(pair.second);
    auto lane = transport::connected_pair();
    created->events.emplace(io_, *created, lane_kind::events, std::move(lane.first));
    event_peers_[number] = std::move(lane.second);
    const core::principal who{"uid 1000", true};
    hub_.accept(created, {101, 1000, true, who});
    created->principal = who;
    created->held = hub_.new_charges(*created);
    created->lost_subscriptions.reserve(8);
    loop_.join(*created);
    return *created;
  }

  /// Reads up to `most` queued messages of the peer, answers before events.
  std::vector<wire::message> read(const connection& connection, std::size_t most = 1'000'000) {
    std::vector<wire::message> result;
    for (const int socket :
         {peers_[connection.number].get(), event_peers_[connection.number].get()}) {
      while (result.size() < most) {
        auto got = transport::receive_packet(socket, buffer_);
        if (got.status != transport::receive_status::packet) {
          break;
        }
        auto message = wire::decode(got.packet);
        EXPECT_TRUE(message);
        result.push_back(std::move(message).value_or(wire::message{}));
      }
    }
    return result;
  }
  void poll() {
    io_.restart();
    io_.poll();
  }

  succession::recorder recorder_;
  asio::io_context io_{1};
  recorded_outbox out_;
  hub hub_;
  member_log log_{"default"};
  turn_loop loop_;
  int rounds_ = 0;
  std::map<core::session_id, base::unique_fd> peers_;
  std::map<core::session_id, base::unique_fd> event_peers_;
  std::vector<core::session_id> closed_;
  core::session_id next_ = 1;
  std::array<std::byte, wire::max_packet_bytes> buffer_{};
};

}  // namespace gpushm::broker_detail::testing_world
