// SPDX-License-Identifier: Apache-2.0
// Descriptors that block a thread that closes or inspects them.

#include <sys/stat.h>

#include <algorithm>
#include <csignal>

#include "protocol/wire/codec.hpp"
#include "tests/hostile/hostile_world.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/raw_session/traps.hpp"

namespace gpushm_tests {
namespace {

using gpushm_testing::clock;
using std::chrono::milliseconds;
using std::chrono::seconds;
namespace wire = gpushm::wire;

class blocking : public hostile {
 protected:
  /// Closes the broker's standard input, which starts an orderly shutdown.
  void expect_orderly_end(milliseconds within) {
    good_.reset();
    broker_->process().close_stdin();
    EXPECT_EQ(broker_->process().wait_exit(within), gpushm_testing::exited(0));
    broker_.reset();
  }
};

/// Sends `packet` with copies of a socket whose last close blocks. The broker's close is the last
/// if it comes after the attacker's: several processes try, because this is a race.
void send_lingering(forked_process::parent_link& parent,
                    const std::function<raw_session()>& connect,
                    const std::vector<std::byte>& packet) {
  for (int i = 0; i < 5; ++i) {
    if (::fork() == 0) {
      auto session = connect();
      gpushm_testing::lingering_socket trap{seconds(20)};
      const std::vector<int> copies(200, trap.trap.get());
      for (int j = 0; j < 8; ++j) {
        (void)session.try_send(packet, copies);
      }
      trap.trap.reset();
      gpushm_testing::sleep_for(seconds(60));
    }
  }
  parent.send_line("started");
  gpushm_testing::sleep_for(seconds(60));
}

TEST_F(blocking, socket_with_linger_does_not_block_others) {
  auto attack = attacker([this](forked_process::parent_link& parent) {
    send_lingering(
        parent, [this] { return greeted(); }, wire::encode({1, wire::stat{"x"}}));
  });
  ASSERT_EQ(attack.wait_line(seconds(10)), "started");
  expect_progress(seconds(4));
  expect_orderly_end(seconds(8));
}

TEST_F(blocking, dropped_connection_with_unread_linger_does_not_block) {
  auto attack = attacker([this](forked_process::parent_link& parent) {
    send_lingering(
        parent,
        [this] { return raw_session(socket()); },
        std::vector<std::byte>(16, std::byte{'g'}));
  });
  ASSERT_EQ(attack.wait_line(seconds(10)), "started");
  expect_progress(seconds(4));
}

enum class carried_by : unsigned char { attach, stat, hello, garbage };

class silent_file : public blocking, public ::testing::WithParamInterface<carried_by> {};

TEST_P(silent_file, of_a_fuse_server_does_not_block_others) {
  const auto mount_point = directory_ / "fuse";
  ASSERT_EQ(::mkdir(mount_point.c_str(), 0755), 0);
  // Mounts as root; on nodes, any user can do the same in a user namespace.
  auto attack = attacker(
      [&](forked_process::parent_link& parent) {
        raw_session session(socket());
        if (GetParam() != carried_by::hello && GetParam() != carried_by::garbage) {
          session = greeted();
        }
        gpushm::generation reserved = 0;
        if (GetParam() == carried_by::attach) {
          const auto reply = session.request(gpushm_testing::reserve_pages("silent", 1));
          const auto* grant = gpushm_testing::body_of<wire::reserved>(reply);
          reserved = grant != nullptr ? grant->generation : 0;
        }
        std::string why_not;
        const auto file = gpushm_testing::silent_fuse_file(mount_point, why_not);
        if (!file) {
          parent.send_line(why_not);
          return;
        }
        const std::vector<int> descriptors{*file};
        switch (GetParam()) {
          case carried_by::attach:
            session.send(wire::attach{reserved, 0, {4096}}, descriptors);
            break;
          case carried_by::stat:
            session.send(wire::stat{"x"}, descriptors);
            break;
          case carried_by::hello:
            session.send(wire::hello{}, descriptors);
            break;
          case carried_by::garbage:
            session.send_bytes(std::vector<std::byte>(16, std::byte{'g'}), descriptors);
            break;
        }
        parent.send_line("sent");
        gpushm_testing::sleep_for(seconds(60));
      },
      {});
  const auto reply = attack.wait_line(seconds(10));
  if (reply != "sent") {
    GTEST_SKIP() << reply;
  }
  expect_progress(seconds(4));
}

INSTANTIATE_TEST_SUITE_P(
    message,
    silent_file,
    ::testing::Values(carried_by::attach, carried_by::stat, carried_by::hello, carried_by::garbage),
    [](const auto& tested) -> std::string {
      switch (tested.param) {
        case carried_by::attach:
          return "attach";
        case carried_by::stat:
          return "stat";
        case carried_by::hello:
          return "hello";
        case carried_by::garbage:
          return "garbage";
      }
      return "unknown";
    });

/// Compares two times in one run, best of three: how long the broker does not reply after the last
/// close of memory that takes long to free, and how long that close takes in this process.
TEST_F(blocking, freeing_much_memory_does_not_block_others) {
  constexpr std::uint64_t size = 512 * mebibyte;
  auto owner = greeted();
  auto stall = clock::duration::max();
  auto freeing = clock::duration::max();
  for (int round = 0; round < 3; ++round) {
    auto own = gpushm_testing::make_chunk(size);
    auto started = clock::now();
    own.reset();
    freeing = std::min(freeing, clock::now() - started);

    auto reservation = gpushm_testing::reserve_pages("large", 1);
    reservation.size_bytes = reservation.allocated_bytes = size;
    reservation.lifetime = gpushm::lifetime::persistent;
    const auto reserved = owner.request(reservation);
    const auto* grant = gpushm_testing::body_of<wire::reserved>(reserved);
    ASSERT_NE(grant, nullptr);
    {
      const auto chunk = gpushm_testing::make_chunk(size);
      const std::vector<int> numbers{chunk.get()};
      ASSERT_NE(gpushm_testing::body_of<wire::done>(
                    owner.request(wire::attach{grant->generation, 0, {size}}, numbers)),
                nullptr);
    }
    ASSERT_NE(
        gpushm_testing::body_of<wire::done>(owner.request(wire::publish{grant->generation, {}})),
        nullptr);
    owner.send(wire::release{grant->generation, 1});
    started = clock::now();
    ASSERT_NE(gpushm_testing::body_of<wire::done>(owner.request(wire::remove{"large", 0})),
              nullptr);
    ASSERT_NE(gpushm_testing::body_of<wire::listing>(owner.request(wire::stat{"good/segment"})),
              nullptr);
    stall = std::min(stall, clock::now() - started);
  }
  EXPECT_LT(stall, freeing / 2);
}

}  // namespace
}  // namespace gpushm_tests
