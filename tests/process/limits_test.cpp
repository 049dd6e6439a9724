// SPDX-License-Identifier: Apache-2.0
// The limits of a real broker, and clients that exceed them.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/files/page_size.hpp"
#include "gpushm/gpushm.hpp"
#include "protocol/transport/packet_socket.hpp"
#include "protocol/wire/codec.hpp"
#include "tests/support/broker_process/bad_input.hpp"
#include "tests/support/process/deadline.hpp"

namespace gpushm_tests {
namespace {

using gpushm::errc;
using gpushm_testing::eventually;
using std::chrono::milliseconds;
using std::chrono::seconds;
namespace wire = gpushm::wire;

class few_connections : public bad_input {
 protected:
  few_connections() : bad_input({"max_connections=4"}) {}
};

TEST_F(few_connections, excess_connection_is_refused_and_room_is_reused) {
  std::vector<raw_client> others;
  for (int i = 0; i < 3; ++i) {
    others.push_back(greeted());
  }
  EXPECT_EQ(code_of([&] { (void)connect(); }), errc::too_many_connections);
  EXPECT_TRUE(bystander_.list().empty());
  others.pop_back();
  EXPECT_TRUE(
      eventually([&] { return code_of([&] { (void)connect(); }) != errc::too_many_connections; },
                 seconds(20)));
}

class short_hello : public bad_input {
 protected:
  short_hello()
      : bad_input({"hello_timeout_ms=" +
                       std::to_string(gpushm_testing::scaled_timeout(milliseconds(500)).count()),
                   "max_connections=64"}) {}
};

TEST_F(short_hello, silent_connections_are_closed) {
  std::vector<raw_client> silent;
  for (int i = 0; i < 32; ++i) {
    silent.emplace_back(broker_.socket_path());
  }
  auto active = greeted();
  for (auto& client : silent) {
    EXPECT_TRUE(client.closed_within(seconds(5)));
  }
  EXPECT_FALSE(active.request(wire::list{}).closed);
}

class short_send : public bad_input {
 protected:
  short_send()
      : bad_input({"send_timeout_ms=" +
                   std::to_string(gpushm_testing::scaled_timeout(milliseconds(300)).count())}) {}

  void publish_chunks(gpushm::client& client, const std::string& name, std::uint64_t chunks) {
    const std::uint64_t page = gpushm::base::host_page_bytes();
    kept_.push_back(
        client.create(name, {.size_bytes = chunks * page, .device = "host", .chunk_bytes = page}));
    kept_.back().publish();
  }
  void TearDown() override {
    kept_.clear();
    bad_input::TearDown();
  }
  std::vector<gpushm::segment> kept_;
};

TEST_F(short_send, client_that_never_reads_is_dropped) {
  publish_chunks(bystander_, "large-list", 1);
  auto reader = greeted();
  // Fills its buffers and the broker's with answers to list requests.
  std::uint64_t sent = 0;
  const auto deadline = gpushm_testing::deadline_after(seconds(20));
  while (gpushm_testing::clock::now() < deadline) {
    const auto packet = wire::encode({++sent, wire::list{}});
    if (gpushm::transport::send_packet(reader.socket(), packet, {}) ==
        gpushm::transport::send_result::closed) {
      break;
    }
    const auto begin = gpushm_testing::clock::now();
    ASSERT_EQ(bystander_.stat("large-list").chunks, 1U);
    ASSERT_LT(gpushm_testing::clock::now() - begin, gpushm_testing::scaled_timeout(seconds(5)));
  }
  EXPECT_TRUE(reader.closed_within(seconds(20)));
}

TEST_F(short_send, client_with_unread_descriptors_is_dropped) {
  publish_chunks(bystander_, "many-chunks", 252);
  auto reader = greeted();
  for (int i = 0; i < 100; ++i) {
    if (gpushm::transport::send_packet(
            reader.socket(),
            wire::encode({1000U + static_cast<unsigned>(i), wire::open{"many-chunks", 0, 0}}),
            {}) != gpushm::transport::send_result::sent) {
      break;
    }
  }
  // Others still get descriptors: the kernel counts descriptors in flight over all of a user's
  // sockets.
  auto other = connect();
  EXPECT_EQ(other.open("many-chunks").size_bytes(), 252U * gpushm::base::host_page_bytes());
  // Some answers are in its socket already; the end follows within the deadline for readers.
  std::size_t packets = 0;
  EXPECT_TRUE(eventually([&] { return bystander_.stat("many-chunks").leases == 1; }, seconds(10)));
  const auto deadline = gpushm_testing::deadline_after(seconds(5));
  while (gpushm_testing::clock::now() < deadline) {
    const auto reply = reader.receive();
    if (reply.closed) {
      break;
    }
    ++packets;
  }
  EXPECT_LE(packets, 5U) << "more than 1,012 descriptors were in flight";
}

class small_quota : public bad_input {
 protected:
  small_quota() : bad_input({"quota_bytes=1048576", "max_segments=3"}) {}
};

TEST_F(small_quota, sizes_and_segments_beyond_the_limits_are_refused) {
  EXPECT_EQ(code_of([&] {
              (void)bystander_.create("too-large", {.size_bytes = 2U << 20U, .device = "host"});
            }),
            errc::quota_exceeded);
  std::vector<gpushm::segment> created;
  for (int i = 0; i < 3; ++i) {
    created.push_back(
        bystander_.create("small-" + std::to_string(i), {.size_bytes = 4096, .device = "host"}));
  }
  EXPECT_EQ(
      code_of([&] { (void)bystander_.create("fourth", {.size_bytes = 4096, .device = "host"}); }),
      errc::too_many_segments);
  created.pop_back();
  created.push_back(bystander_.create("fourth", {.size_bytes = 4096, .device = "host"}));
  EXPECT_EQ(bystander_.list().size(), 3U);
}

/// Each is free a moment after it is removed.
TEST_F(small_quota, segments_of_the_whole_quota_can_be_created_one_after_another) {
  for (int round = 0; round != 50; ++round) {
    const gpushm::segment created =
        bystander_.create("whole", {.size_bytes = 1U << 20U, .device = "host"});
    EXPECT_EQ(bystander_.list().size(), 1U);
  }
}

}  // namespace
}  // namespace gpushm_tests
