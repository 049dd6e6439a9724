// SPDX-License-Identifier: Apache-2.0
// More packets than a socket's buffer holds (277 small ones), in either direction.

#include <algorithm>

#include "protocol/transport/packet_socket.hpp"
#include "protocol/wire/codec.hpp"
#include "tests/hostile/hostile_world.hpp"
#include "tests/support/process/deadline.hpp"

namespace gpushm_tests {
namespace {

using gpushm_testing::body_of;
using gpushm_testing::clock;
using gpushm_testing::publish_segment;
using std::chrono::milliseconds;
using std::chrono::seconds;
namespace wire = gpushm::wire;

constexpr unsigned packets_in_a_buffer = 277;  // measured: of the smallest packets, by default
constexpr unsigned more_than_a_buffer = 2000;

class volume : public hostile {
 protected:
  /// An exporter in a separate process that does not read for `pause` once and then answers each
  /// Confirm before it reads the next, like a client with one thread.
  [[nodiscard]] forked_process exporter(milliseconds pause) const {
    auto started = attacker([this, pause](forked_process::parent_link& parent) {
      auto session = greeted();
      const auto generation =
          publish_segment(session, gpushm_testing::reserve_exported("exported"));
      parent.send_line(generation != 0 ? "exports" : "refused");
      bool first = true;
      while (true) {
        const auto received = session.receive(seconds(60));
        if (!received.message) {
          return;
        }
        if (const auto* confirm = body_of<wire::confirm>(received)) {
          if (std::exchange(first, false)) {
            gpushm_testing::sleep_for(pause);
          }
          session.send(
              wire::confirmed{confirm->questions,
                              std::vector(confirm->questions.size(), wire::verdict::unchanged)});
        }
      }
    });
    EXPECT_EQ(started.wait_line(seconds(10)), "exports");
    return started;
  }
};  // namespace

TEST_F(volume, opens_of_many_importers_succeed) {
  constexpr unsigned importers = 5;
  // The broker's timeout for an exporter is the same in instrumented programs.
  constexpr unsigned each = 128 / gpushm_testing::timeout_factor;
  const auto exporting = exporter(milliseconds(10));
  std::vector<raw_session> sessions;
  for (unsigned i = 0; i < importers; ++i) {
    sessions.push_back(greeted());
  }
  for (auto& session : sessions) {
    ASSERT_TRUE(session.send(wire::open_many{std::vector<std::string>(each, "exported"), 0, 0}));
  }
  unsigned opened = 0;
  for (auto& session : sessions) {
    for (unsigned i = 0; i < each;) {
      const auto reply = session.receive(seconds(20));
      ASSERT_TRUE(reply.message.has_value());
      i += body_of<wire::waiting>(reply) == nullptr ? 1U : 0U;
      opened += body_of<wire::opened>(reply) != nullptr ? 1U : 0U;
    }
  }
  EXPECT_EQ(opened, importers * each);
  // The exporter is still serving.
  const auto again = sessions.front().request(wire::open{"exported", 0, 0});
  EXPECT_NE(body_of<wire::opened>(again), nullptr);
  expect_progress(seconds(1));
}

TEST_F(volume, requests_get_replies_despite_late_reads) {
  auto session = greeted();
  unsigned sent = 0;
  unsigned replied = 0;
  const auto packet = wire::encode({7, wire::stat{"good/segment"}});
  const auto deadline = gpushm_testing::deadline_after(seconds(30));
  // Sends as much as fits, then reads until there is room.
  while (replied < more_than_a_buffer && clock::now() < deadline) {
    while (sent < more_than_a_buffer &&
           session.try_send(packet) == gpushm::transport::send_result::sent) {
      ++sent;
    }
    const auto reply = session.receive(seconds(5));
    ASSERT_TRUE(reply.message.has_value()) << replied << " answers of " << sent << " requests";
    replied += body_of<wire::listing>(reply) != nullptr ? 1U : 0U;
  }
  EXPECT_EQ(replied, more_than_a_buffer);
  expect_progress(seconds(1));
}

TEST_F(volume, unread_events_do_not_delay_requests) {
  auto session = greeted();
  ASSERT_NE(body_of<wire::subscribed>(session.request(wire::subscribe{"made/"})), nullptr);
  auto publisher = greeted();
  // A broker ends the connection of a member that reads nothing for 5 s.
  const auto read_at = clock::now() + seconds(3);
  unsigned created = 0;
  for (; created < more_than_a_buffer && clock::now() < read_at; ++created) {
    ASSERT_NE(publish_segment(publisher, gpushm_testing::reserve_exported("made/here")), 0U);
    ASSERT_NE(body_of<wire::done>(publisher.request(wire::remove{"made/here", 0})), nullptr);
  }
  if (2 * created <= packets_in_a_buffer) {
    GTEST_SKIP() << "this machine is too slow to fill a buffer in 3 s: " << 2 * created << " of "
                 << packets_in_a_buffer << " events";
  }
  // The event lane is full of unread events.
  ASSERT_TRUE(session.send(wire::stat{"good/segment"}));
  ASSERT_TRUE(gpushm::transport::wait_readable(session.socket(),
                                               gpushm_testing::scaled_timeout(seconds(5))));
  const auto reply = session.receive(seconds(5));
  EXPECT_NE(body_of<wire::listing>(reply), nullptr);
  const auto next = session.receive(seconds(5));
  EXPECT_NE(body_of<wire::event>(next), nullptr);
  expect_progress(seconds(1));
}

}  // namespace
}  // namespace gpushm_tests
