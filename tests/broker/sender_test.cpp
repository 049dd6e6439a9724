// SPDX-License-Identifier: Apache-2.0
#include "broker/session/sender.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <asio/post.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/files/unique_fd.hpp"
#include "succession/journal/journal.hpp"
#include "succession/records/records.hpp"
#include "tests/broker/unread_keeper.hpp"
#include "tests/client/connection_world.hpp"
#include "tests/support/process/deadline.hpp"

namespace gpushm::broker_detail {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::uint32_t max_inflight = 4;
/// One principal gets 32 of them: eight connections have `max_inflight`.
constexpr std::uint64_t max_inflight_of_all = 40;

prepared reply(std::uint64_t id, std::size_t bytes = 0) {
  outgoing packet;
  packet.packet =
      wire::encode({id, wire::failure{0, errc::no_such_segment, std::string(bytes, 'x'), {}}});
  prepared result;
  result.push_back(std::move(packet));
  return result;
}

prepared event(std::uint64_t subscription) {
  wire::event event;
  event.kind = event_kind::published;
  outgoing packet;
  packet.packet = wire::encode({subscription, std::move(event)});
  packet.subscription = subscription;
  packet.on_event_lane = true;
  packet.is_reply = false;
  prepared result;
  result.push_back(std::move(packet));
  return result;
}

std::vector<std::uint64_t> ids(const std::vector<wire::message>& messages) {
  std::vector<std::uint64_t> result;
  for (const wire::message& each : messages) {
    result.push_back(each.id);
  }
  return result;
}

class broker_sender : public testing_world::connection_test {
 protected:
  explicit broker_sender(const core::limits& bounds = {}) : connection_test(bounds) {}

  void step(connection& member) override {
    if (member.may_flush()) {
      sender_.flush(member);
    } else {
      member.requests.readable = false;  // this test receives nothing
    }
  }
  void send(connection& connection, prepared packet) {
    sender_.send(connection, std::move(packet));
    sender_.deliver();
  }
  /// Lets the peer read until it has `count` messages.
  std::vector<wire::message> read_all(const connection& connection, std::size_t count) {
    std::vector<wire::message> packets;
    EXPECT_TRUE(gpushm_testing::eventually(
        [&] {
          poll();
          for (wire::message& each : read(connection)) {
            packets.push_back(std::move(each));
          }
          return packets.size() >= count;
        },
        seconds(10)));
    return packets;
  }
  [[nodiscard]] static std::uint64_t held(const connection& connection) {
    return connection.held.held(core::resource::memory_bytes);
  }

  deadlines deadlines_{io_, hub_, *this, log_, {seconds(100), seconds(100)}};
  retry_poll poll_{io_, loop_};
  sender sender_{loop_,
                 deadlines_,
                 poll_,
                 *this,
                 log_,
                 recorder_,
                 max_inflight,
                 std::make_shared<inflight_budget>(max_inflight_of_all)};
};

TEST_F(broker_sender, sends_replies_immediately_and_events_in_turns) {
  connection& to = connect();
  send(to, event(7));
  EXPECT_EQ(read(to).size(), 0U);
  poll();
  EXPECT_EQ(ids(read(to)), std::vector<std::uint64_t>{7});
  send(to, reply(1));
  EXPECT_EQ(ids(read(to)), std::vector<std::uint64_t>{1});
}

TEST_F(broker_sender, keeps_the_order_and_releases_charges) {
  connection& to = connect();
  std::vector<std::uint64_t> expected;
  while (to.may_reply()) {
    expected.push_back(expected.size() + 1);
    send(to, reply(expected.back(), 50'000));
  }
  EXPECT_TRUE(to.requests.blocked);
  EXPECT_TRUE(to.requests.blocked_since);
  EXPECT_EQ(to.queued_replies, connection::max_queued_replies);
  EXPECT_GT(held(to), expected.size() * 50'000);
  EXPECT_EQ(ids(read_all(to, expected.size())), expected);
  EXPECT_FALSE(to.requests.blocked_since);
  EXPECT_EQ(to.queued_replies, 0U);
  sender_.settle_after_request(to);
  EXPECT_EQ(held(to), 0U);
  EXPECT_EQ(closed_, std::vector<core::session_id>{});
}

TEST_F(broker_sender, asks_the_kernel_once_for_several_packets) {
  connection& to = connect();
  send(to, reply(1, 5'000));
  sender_.settle_after_request(to);
  EXPECT_EQ(read(to).size(), 1U);
  sender_.settle_after_request(to);
  EXPECT_GT(held(to), 0U);
  send(to, reply(2, 5'000));
  EXPECT_EQ(read(to).size(), 1U);
  sender_.settle_after_request(to);
  EXPECT_EQ(held(to), 0U);
}

TEST_F(broker_sender, replaces_excess_events_by_one_resync) {
  connection& to = connect();
  constexpr std::size_t room = 1024;
  for (std::size_t i = 0; i < room + 100; ++i) {
    send(to, event(7));
  }
  sender_.lose_event(to, 7);
  EXPECT_EQ(to.queued_events, room);
  const auto packets = read_all(to, room + 1);
  ASSERT_EQ(packets.size(), room + 1);
  for (std::size_t i = 0; i <= room; ++i) {
    const auto* what = std::get_if<wire::event>(&packets[i].body);
    ASSERT_NE(what, nullptr);
    EXPECT_EQ(what->kind, i == room ? event_kind::resync : event_kind::published);
  }
  poll();
  EXPECT_EQ(read(to).size(), 0U);
  EXPECT_EQ(to.queued_events, 0U);
}

/// What would be lost need not be made: with thousands of subscriptions, that is most of a turn.
TEST_F(broker_sender, takes_no_event_that_a_resync_replaces) {
  connection& to = connect();
  EXPECT_TRUE(sender::takes_event(to, 7));
  sender_.lose_event(to, 7);
  EXPECT_FALSE(sender::takes_event(to, 7)) << "a resync is owed";
  EXPECT_TRUE(sender::takes_event(to, 8));
  poll();
  EXPECT_EQ(ids(read(to)), std::vector<std::uint64_t>{7});
  EXPECT_TRUE(sender::takes_event(to, 7));
  while (sender::takes_event(to, 7)) {  // nothing is read
    send(to, event(7));
  }
  EXPECT_FALSE(sender::takes_event(to, 8)) << "the queue is full";
}

TEST_F(broker_sender, sends_a_resync_with_an_empty_queue) {
  connection& to = connect();
  sender_.lose_event(to, 7);
  sender_.lose_event(to, 7);
  poll();
  const auto packets = read(to);
  ASSERT_EQ(ids(packets), std::vector<std::uint64_t>{7});
  const auto* what = std::get_if<wire::event>(&packets.front().body);
  ASSERT_NE(what, nullptr);
  EXPECT_EQ(what->kind, event_kind::resync);
}

TEST_F(broker_sender, limits_descriptors_in_flight) {
  connection& to = connect();
  const base::unique_fd file = testing_world::memfd(4096);
  for (std::uint64_t id = 1; id <= 3; ++id) {
    prepared packet = reply(id);
    packet.front().descriptors = {file.get(), file.get()};
    send(to, std::move(packet));
  }
  EXPECT_EQ(to.requests.inflight_descriptors, max_inflight);
  EXPECT_TRUE(to.requests.blocked);
  EXPECT_EQ(ids(read(to)), (std::vector<std::uint64_t>{1, 2}));
  EXPECT_EQ(ids(read_all(to, 1)), std::vector<std::uint64_t>{3});
  EXPECT_EQ(to.requests.inflight_descriptors, 2U);
}

/// Linux counts them for the uid of the broker.
TEST_F(broker_sender, limits_descriptors_in_flight_of_a_principal) {
  const base::unique_fd file = testing_world::memfd(4096);
  std::uint64_t sent = 0;
  const auto send_two = [&](connection& connection) {
    connection.requests.sent = std::max<std::uint64_t>(connection.requests.sent, 1);  // no Welcome
    prepared packet = reply(++sent);
    packet.front().descriptors = {file.get(), file.get()};
    send(connection, std::move(packet));
    return sent;
  };
  std::vector<connection*> silent;
  for (int i = 0; i < 8; ++i) {
    silent.push_back(&connect());
    send_two(*silent.back());
    send_two(*silent.back());
    EXPECT_FALSE(silent.back()->requests.blocked);
  }
  connection& ninth = connect();
  const std::uint64_t waiting = send_two(ninth);
  EXPECT_TRUE(ninth.requests.blocked);
  EXPECT_FALSE(ninth.requests.blocked_since) << "it waits for others, and would be closed for it";
  connection& other = connect();
  other.principal.key = "uid 1001";
  const std::uint64_t of_other = send_two(other);
  EXPECT_EQ(ids(read(other)), std::vector<std::uint64_t>{of_other});
  // Nothing reports that room has been made, and nothing more is sent to that connection.
  EXPECT_EQ(read(*silent[3]).size(), 2U);
  EXPECT_EQ(ids(read_all(ninth, 1)), std::vector<std::uint64_t>{waiting});
  for (int i = 0; i < 20; ++i) {
    const std::uint64_t next = send_two(ninth);
    EXPECT_EQ(ids(read_all(ninth, 1)), std::vector<std::uint64_t>{next});
  }
  EXPECT_EQ(silent[0]->requests.inflight.count(), max_inflight);
  EXPECT_TRUE(closed_.empty());
}

TEST_F(broker_sender, counts_what_a_predecessor_has_sent) {
  const base::unique_fd file = testing_world::memfd(4096);
  const auto send_two = [&](sender& sender, connection& connection) {
    connection.requests.sent = 1;  // no Welcome
    prepared packet = reply(1);
    packet.front().descriptors = {file.get(), file.get()};
    sender.send(connection, std::move(packet));
    sender.deliver();
  };
  std::vector<connection*> silent;
  for (int i = 0; i < 4; ++i) {
    silent.push_back(&connect());
    send_two(sender_, *silent.back());
    send_two(sender_, *silent.back());
    EXPECT_EQ(silent.back()->requests.inflight_bound, max_inflight);
  }
  // Has had many, and has read all but one packet.
  connection& reader = connect();
  reader.requests.inflight_bound = 1'000;
  send_two(sender_, reader);
  connection& ready = connect();

  const auto budget = std::make_shared<inflight_budget>(max_inflight_of_all);
  sender successor{loop_, deadlines_, poll_, *this, log_, recorder_, 1'000, budget};
  silent.push_back(&reader);
  silent.push_back(&ready);
  for (connection* each : silent) {
    each->requests.inflight.reset();
    each->requests.inflight_descriptors = 0;
    successor.restore_inflight(each->requests);
  }
  EXPECT_EQ(silent.front()->requests.inflight.count(), max_inflight);
  EXPECT_EQ(reader.requests.inflight.count(), 15U) << "its bound is more than there can be";
  EXPECT_EQ(ready.requests.inflight.count(), 0U);
  send_two(successor, ready);
  EXPECT_TRUE(ready.requests.blocked) << "it was one principal's share";
  connection& other = connect();
  other.principal.key = "uid 1001";
  send_two(successor, other);
  EXPECT_EQ(read(other).size(), 1U);
  EXPECT_TRUE(closed_.empty());
}

/// Which grows rarely: it is recorded.
TEST_F(broker_sender, keeps_a_bound_of_descriptors_in_flight) {
  const base::unique_fd file = testing_world::memfd(4096);
  const auto budget = std::make_shared<inflight_budget>(1'000);
  sender many{loop_, deadlines_, poll_, *this, log_, recorder_, 1'000, budget};
  connection& to = connect();
  std::uint32_t sent = 0;
  for (const std::uint32_t count : {5U, 50U, 10U, 1U}) {
    prepared packet = reply(1);
    packet.front().descriptors.assign(count, file.get());
    many.send(to, std::move(packet));
    many.deliver();
    sent += count;
    EXPECT_EQ(to.requests.inflight_descriptors, sent);
    EXPECT_EQ(to.requests.inflight_bound, sent <= 64 ? 64U : 128U);
  }
}

TEST_F(broker_sender, charges_welcome_apart_from_replies) {
  const base::unique_fd file = testing_world::memfd(4096);
  const auto budget = std::make_shared<inflight_budget>(max_inflight_of_all);
  const core::principal who{"uid 1000", true};
  connection& to = connect();
  inflight_charge unread;
  const int socket = to.requests.socket.get();
  ASSERT_TRUE(unread.try_take(budget, who, socket, inflight_use::reply, 39));
  EXPECT_FALSE(unread.try_take(budget, who, socket, inflight_use::reply, 1));
  EXPECT_TRUE(unread.try_take(budget, who, socket, inflight_use::welcome, 2));
  inflight_charge moved = std::move(unread);
  EXPECT_EQ(moved.count(), 41U);
  budget->settle();  // nothing has been sent
  EXPECT_EQ(moved.count(), 0U);
  EXPECT_TRUE(moved.try_take(budget, who, socket, inflight_use::reply, 20));
  moved.release(inflight_use::reply, 20);
}

TEST_F(broker_sender, closes_a_dropped_connection_after_its_queue) {
  connection& to = connect();
  send(to, event(7));
  to.dropped = true;
  EXPECT_EQ(closed_, std::vector<core::session_id>{});
  poll();
  EXPECT_EQ(ids(read(to)), std::vector<std::uint64_t>{7});
  EXPECT_EQ(closed_, std::vector<core::session_id>{to.number});
}

TEST_F(broker_sender, reads_what_a_closed_peer_sent_before) {
  connection& to = connect();
  peers_.erase(to.number);
  for (int i = 0; i < 3; ++i) {
    send(to, reply(1));
    EXPECT_TRUE(to.requests.queue.empty());
    EXPECT_EQ(to.queued_replies, 0U);
  }
  EXPECT_EQ(held(to), 0U);
  EXPECT_TRUE(closed_.empty());  // not before everything is read
  EXPECT_TRUE(to.may_read());
  to.for_each_lane([](lane& each) { each.readable = false; });
  EXPECT_TRUE(to.is_over());
}

/// A domain with memory for little more than the connection itself.
class broker_sender_without_memory : public broker_sender {
 protected:
  static core::limits bounds() {
    core::limits result;
    result.max_memory_bytes = 64 * 1024;
    return result;
  }
  broker_sender_without_memory() : broker_sender(bounds()) {}
};

TEST_F(broker_sender_without_memory, owes_a_resync_for_an_event_beyond_the_share) {
  connection& to = connect();
  std::size_t sent = 0;
  while (to.lost_subscriptions.empty() && sent < 1024) {
    send(to, event(7));
    ++sent;
  }
  EXPECT_LT(sent, 1024U);
  const auto packets = read_all(to, sent);
  ASSERT_EQ(packets.size(), sent);
  EXPECT_EQ(std::get<wire::event>(packets.back().body).kind, event_kind::resync);
}

/// With a journal.
class broker_sender_with_journal : public broker_sender {
 protected:
  broker_sender_with_journal() {
    auto log = journal::journal::create();
    file_ = base::unique_fd(::fcntl(log.descriptor(), F_DUPFD_CLOEXEC, 0));
    recorder_ = succession::recorder(std::move(log), keeper_.shelf(), 1);
  }
  /// As a successor would read it.
  [[nodiscard]] journal::journal committed() {
    recorder_.commit();
    struct stat status {};
    EXPECT_EQ(::fstat(file_.get(), &status), 0);
    base::unique_fd copy(::memfd_create("copy", MFD_CLOEXEC));
    off_t from = 0;
    const auto size = static_cast<std::size_t>(status.st_size);
    EXPECT_EQ(::sendfile(copy.get(), file_.get(), &from, size), status.st_size);
    return journal::journal::open(std::move(copy));
  }
  [[nodiscard]] std::uint64_t recorded_events(const connection& connection) {
    const auto log = committed();
    const auto bytes = log.find(records::key_of(records::kind::lane, connection.number));
    return bytes
               ? std::get<records::lane_record>(records::decode(records::kind::lane, *bytes)).queued
               : 0;
  }

  testing_world::unread_keeper keeper_;
  base::unique_fd file_;
};

TEST_F(broker_sender_with_journal, records_the_lane_once_for_all_events_of_a_turn) {
  connection& to = connect();
  connection& another = connect();
  std::uint64_t queued = 0;
  const auto bytes_for = [&](std::uint64_t events) {
    const std::uint64_t before = committed().used_bytes();
    for (std::uint64_t i = 0; i < events; ++i) {
      sender_.send(to, event(i));
      sender_.send(another, event(i));
    }
    sender_.record_events();
    queued += events;
    EXPECT_EQ(recorded_events(to), queued);
    EXPECT_EQ(recorded_events(another), queued);
    return committed().used_bytes() - before;
  };
  static_cast<void>(bytes_for(1));
  const std::uint64_t bytes_of_one = bytes_for(1);
  EXPECT_GT(bytes_of_one, 0U);
  EXPECT_EQ(bytes_for(100), bytes_of_one);
}

using broker_turn_loop = testing_world::connection_test;

TEST_F(broker_turn_loop, busy_job_leaves_time_for_the_event_loop) {
  turn_loop::job* self = nullptr;
  std::uint64_t turns = 0;
  turn_loop::job job([&] {
    if (++turns == 1) {
      asio::post(io_, [this] { io_.stop(); });
    }
    loop_.request_turn(*self);
  });
  self = &job;
  loop_.join(job, "job");
  poll();
  EXPECT_EQ(turns, 0U) << "no turn requested";
  loop_.request_turn(job);
  EXPECT_EQ(turns, 0U) << "not within the call";
  io_.restart();
  io_.run_for(gpushm_testing::scaled_timeout(seconds(10)));
  EXPECT_TRUE(io_.stopped());
  EXPECT_GT(turns, 0U);
  EXPECT_EQ(rounds_, 1);
}

TEST_F(broker_turn_loop, idle_or_closed_connection_gets_no_turn) {
  connection& idle = connect();
  loop_.request_turn(idle);
  connection& gone = connect();
  gone.requests.readable = true;
  close(gone);
  loop_.request_turn(gone);
  poll();
  EXPECT_EQ(rounds_, 0);
}

}  // namespace
}  // namespace gpushm::broker_detail
