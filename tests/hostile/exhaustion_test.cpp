// SPDX-License-Identifier: Apache-2.0
// One user acquires as much as possible of a limited resource; other users still get some.

#include <string>
#include <vector>

#include "tests/hostile/hostile_world.hpp"
#include "tests/support/raw_session/floods.hpp"

namespace gpushm_tests {
namespace {

using gpushm_testing::body_of;
using gpushm_testing::publish_segment;
using gpushm_testing::reserve_pages;
using std::chrono::seconds;
namespace wire = gpushm::wire;

class exhaustion : public hostile {
 protected:
  using hostile::hostile;

  /// A new client of another user connects and publishes `count` segments.
  void expect_newcomer_gets(unsigned count, std::uint32_t chunks) const {
    auto newcomer = attacker(
        [&](forked_process::parent_link& parent) {
          auto session = greeted();
          unsigned created = 0;
          for (unsigned i = 0; i < count; ++i) {
            created += publish_segment(session,
                                       reserve_pages("newcomer/" + std::to_string(i), chunks)) != 0
                           ? 1U
                           : 0U;
          }
          parent.send_line(std::to_string(created));
        },
        {.uid = good_uid + 1});
    std::string created;
    EXPECT_NO_THROW(created = newcomer.wait_line(seconds(20)));
    EXPECT_EQ(created, std::to_string(count));
  }

  /// Reserves as much as is granted: `most` first, then half as much, down to one. `with(amount)`
  /// returns a reservation of `amount`.
  template <typename With>
  static void reserve_most(raw_session& session, std::uint64_t most, With&& with) {
    int number = 0;
    for (auto amount = most; amount > 0; amount /= 2) {
      bool granted = true;
      for (int i = 0; i < 4 && granted; ++i) {
        wire::reserve reservation = with(amount);
        reservation.name = "taken/" + std::to_string(++number);
        granted = body_of<wire::reserved>(session.request(std::move(reservation))) != nullptr;
      }
    }
  }
};

TEST_F(exhaustion, of_descriptors_leaves_some_for_others) {
  auto attack = attacker([this](forked_process::parent_link& parent) {
    auto session = greeted();
    reserve_most(session, 1UL << 31U, [](std::uint64_t chunks) {
      return reserve_pages({}, static_cast<std::uint32_t>(chunks));
    });
    parent.send_line("taken");
    gpushm_testing::sleep_for(seconds(60));
  });
  ASSERT_EQ(attack.wait_line(seconds(20)), "taken");
  expect_newcomer_gets(3, 10);
  expect_progress(seconds(1));
}

TEST_F(exhaustion, of_bytes_leaves_some_for_others) {
  auto attack = attacker([this](forked_process::parent_link& parent) {
    auto session = greeted();
    reserve_most(session, 1UL << 63U, [](std::uint64_t bytes) {
      auto reservation = reserve_pages({}, 1);
      reservation.size_bytes = reservation.allocated_bytes = bytes;
      return reservation;
    });
    parent.send_line("taken");
    gpushm_testing::sleep_for(seconds(60));
  });
  ASSERT_EQ(attack.wait_line(seconds(20)), "taken");
  expect_newcomer_gets(3, 10);
  expect_progress(seconds(1));
}

class exhaustion_of_segments : public exhaustion {
 protected:
  exhaustion_of_segments() : exhaustion({"max_segments=256"}) {}
};

TEST_F(exhaustion_of_segments, fifty_processes_of_one_user_leave_some_for_others) {
  auto attack = attacker([this](forked_process::parent_link& parent) {
    std::vector<forked_process> others;
    for (unsigned i = 0; i < 50; ++i) {
      others.push_back(forked_process::start({}, [&](forked_process::parent_link& link) {
        auto session = greeted();
        for (unsigned j = 0; j < 100; ++j) {
          (void)session.request(
              gpushm_testing::reserve_exported(std::to_string(i) + "/" + std::to_string(j)));
        }
        link.send_line("taken");
        gpushm_testing::sleep_for(seconds(60));
      }));
      (void)others.back().wait_line(seconds(20));
    }
    parent.send_line("taken");
    gpushm_testing::sleep_for(seconds(60));
  });
  ASSERT_EQ(attack.wait_line(seconds(30)), "taken");
  expect_newcomer_gets(4, 1);
  expect_progress(seconds(1));
}

class exhaustion_of_connections : public exhaustion {
 protected:
  exhaustion_of_connections() : exhaustion({"max_connections=128"}) {}
};

TEST_F(exhaustion_of_connections, fifty_processes_of_one_user_leave_some_for_others) {
  auto attack = attacker([this](forked_process::parent_link& parent) {
    std::vector<forked_process> others;
    for (unsigned i = 0; i < 50; ++i) {
      others.push_back(forked_process::start({}, [&](forked_process::parent_link& link) {
        std::vector<raw_session> sessions;
        for (unsigned j = 0; j < 10; ++j) {
          sessions.emplace_back(socket());
          sessions.back().send(wire::hello{});
        }
        link.send_line("taken");
        gpushm_testing::sleep_for(seconds(60));
      }));
      (void)others.back().wait_line(seconds(20));
    }
    parent.send_line("taken");
    gpushm_testing::sleep_for(seconds(60));
  });
  ASSERT_EQ(attack.wait_line(seconds(30)), "taken");
  expect_newcomer_gets(4, 1);
  expect_progress(seconds(1));
}

class exhaustion_of_descriptors : public exhaustion {
 protected:
  exhaustion_of_descriptors() : exhaustion({}, 256) {}
};

TEST_F(exhaustion_of_descriptors, failed_attach_keeps_the_connection_and_its_segments) {
  auto creator = greeted();
  ASSERT_NE(publish_segment(creator, reserve_pages("weights", 1)), 0U);
  const auto reserved = creator.request(reserve_pages("next", 8));
  const auto* grant = body_of<wire::reserved>(reserved);
  ASSERT_NE(grant, nullptr);
  auto attack = attacker([this](forked_process::parent_link& parent) {
    std::vector<raw_session> silent;
    try {
      for (unsigned i = 0; i < 400; ++i) {
        silent.emplace_back(socket());
      }
    } catch (const gpushm::error&) {  // no more connections
    }
    parent.send_line("connected");
    gpushm_testing::sleep_for(seconds(60));
  });
  ASSERT_EQ(attack.wait_line(seconds(30)), "connected");
  std::vector<gpushm::base::unique_fd> chunks;
  std::vector<int> numbers;
  for (int i = 0; i < 8; ++i) {
    numbers.push_back(chunks.emplace_back(gpushm_testing::make_chunk(4096)).get());
  }
  const auto attached = creator.request(
      wire::attach{grant->generation, 0, std::vector<std::uint64_t>(8, 4096)}, numbers);
  // Refused or not: the connection and its segments stay.
  EXPECT_FALSE(attached.closed);
  if (body_of<wire::done>(attached) == nullptr) {
    EXPECT_TRUE(gpushm_testing::failure_of(attached) == gpushm::errc::too_many_descriptors);
  }
  const auto known = creator.request(wire::stat{"weights"});
  EXPECT_NE(body_of<wire::listing>(known), nullptr);
  expect_progress(seconds(2));
}

TEST_F(exhaustion_of_descriptors, packets_full_of_descriptors_do_not_block_others) {
  auto attack = attacker([this](forked_process::parent_link&) {
    const auto* flood = gpushm_testing::find_flood("descriptors");
    flood->run(socket(), gpushm_testing::clock::now() + scaled_timeout(seconds(4)));
  });
  expect_progress(seconds(4));
}

}  // namespace
}  // namespace gpushm_tests
