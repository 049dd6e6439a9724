// SPDX-License-Identifier: Apache-2.0
// Timelines of CPUs.
#include <atomic>
#include <csignal>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/process/environment.hpp"
#include "tests/support/process/proc_counters.hpp"
#include "tests/timelines/timeline_world.hpp"

namespace {

using namespace std::chrono_literals;
using gpushm::client;
using gpushm::errc;
using gpushm::timeline;
using gpushm_tests::agent;
using gpushm_tests::failure_of;
using gpushm_tests::timeline_world;

class timelines : public testing::Test {
 protected:
  timeline_world world_{true};
  client client_ = world_.connect();
};

TEST_F(timelines, order_two_clients) {
  timeline mine = timeline::create(client_, "t");
  EXPECT_TRUE(mine.is_own());
  EXPECT_EQ(mine.value(), 0U);
  EXPECT_TRUE(mine.try_wait(0));
  const client other = world_.connect();
  const timeline theirs = timeline::open(other, "t");
  EXPECT_FALSE(theirs.is_own());
  EXPECT_EQ(theirs.name(), "t");
  EXPECT_FALSE(theirs.try_wait(1));
  EXPECT_FALSE(theirs.wait(1, 10ms));
  std::jthread signaler([&] {
    std::this_thread::sleep_for(20ms);
    mine.signal(3);
  });
  EXPECT_TRUE(theirs.wait(2, 20s));
  EXPECT_EQ(theirs.value(), 3U);
}

TEST_F(timelines, order_one_process) {
  timeline mine = timeline::create(client_, "t");
  const timeline again = timeline::open(client_, "t");
  EXPECT_FALSE(again.is_own());
  mine.signal(1);
  EXPECT_TRUE(again.try_wait(1));
  mine.reset();
  EXPECT_EQ(failure_of([&] { static_cast<void>(again.try_wait(2)); }), errc::peer_died);
  EXPECT_EQ(again.value(), 1U) << "its last value";
}

TEST_F(timelines, refuse_a_value_that_is_not_larger) {
  timeline mine = timeline::create(client_, "t");
  mine.signal(5);
  EXPECT_EQ(failure_of([&] { mine.signal(5); }), errc::invalid_argument);
  EXPECT_EQ(failure_of([&] { mine.signal(4); }), errc::invalid_argument);
  EXPECT_EQ(failure_of([&] { mine.signal(gpushm::max_timeline_value + 1); }),
            errc::value_out_of_range);
  EXPECT_EQ(failure_of([&] { static_cast<void>(mine.try_wait(UINT64_MAX)); }),
            errc::value_out_of_range);
  EXPECT_EQ(mine.value(), 5U);
  mine.signal(gpushm::max_timeline_value);
  EXPECT_TRUE(mine.try_wait(gpushm::max_timeline_value));
}

TEST_F(timelines, have_flags_instead_of_values) {
  timeline mine = timeline::create(client_, "t");
  const client other = world_.connect();
  timeline theirs = timeline::open(other, "t");
  EXPECT_FALSE(theirs.wait_flags(7, 0ms));
  mine.set_flags(2);
  EXPECT_FALSE(theirs.wait_flags(1, 10ms));
  EXPECT_TRUE(theirs.wait_flags(3, 0ms));
  std::jthread setter([&] {
    std::this_thread::sleep_for(20ms);
    mine.set_flags(1);
  });
  EXPECT_TRUE(theirs.wait_flags(1, 20s));
  EXPECT_FALSE(theirs.wait_flags(2, 0ms)) << "replaced";
  setter.join();
  EXPECT_EQ(failure_of([&] { mine.set_flags(0); }), errc::invalid_argument);
  EXPECT_EQ(failure_of([&] { static_cast<void>(theirs.wait_flags(0, 0ms)); }),
            errc::invalid_argument);
  EXPECT_EQ(failure_of([&] { mine.set_flags(std::uint64_t{1} << 32U); }), errc::value_out_of_range);
  EXPECT_EQ(failure_of([&] { theirs.set_flags(1); }), errc::invalid_argument) << "not its own";
  EXPECT_EQ(failure_of([&] { mine.signal(5); }), errc::invalid_argument) << "it has flags";
  timeline values = timeline::create(client_, "v");
  values.signal(1);
  EXPECT_EQ(failure_of([&] { values.set_flags(2); }), errc::invalid_argument) << "it has values";
  EXPECT_TRUE(theirs.wait_flags(1, 0ms)) << "nothing was changed";
  mine.reset();
  EXPECT_TRUE(theirs.wait_flags(1, 0ms)) << "its last flags";
  EXPECT_EQ(failure_of([&] { static_cast<void>(theirs.wait_flags(2, 0ms)); }), errc::peer_died);
}

TEST_F(timelines, are_handed_over) {
  timeline mine = timeline::create(client_, "t");
  mine.signal(5);
  const client other = world_.connect();
  const client third = world_.connect();
  const timeline waits = timeline::open(third, "t");
  const timeline opened = timeline::open(other, "t");
  EXPECT_EQ(failure_of([&] { static_cast<void>(opened.take_over(10ms)); }), errc::timed_out)
      << "its signaler lives";
  timeline next;
  std::jthread taker([&] { next = opened.take_over(60s); });
  std::atomic<bool> reached{false};
  std::jthread waiter([&] { reached = waits.wait(8, 60s); });
  std::this_thread::sleep_for(20ms);
  mine.hand_over();
  EXPECT_FALSE(mine) << "empty now";
  taker.join();
  EXPECT_TRUE(next.is_own());
  EXPECT_EQ(next.value(), 5U) << "it goes on";
  EXPECT_EQ(failure_of([&] { next.signal(5); }), errc::invalid_argument) << "not larger";
  next.signal(8);
  waiter.join();
  EXPECT_TRUE(reached) << "the waiter has gone on with the new word";
  EXPECT_TRUE(waits.try_wait(8));
  EXPECT_EQ(failure_of([&] { timeline::open(client_, "t").hand_over(); }), errc::invalid_argument)
      << "not its own";
  // After a death, too.
  next.reset();
  EXPECT_EQ(failure_of([&] { static_cast<void>(waits.wait(9, 60s)); }), errc::peer_died);
}

/// A process that suspends and goes on: waiter and signaler share a lease of the name.
TEST_F(timelines, are_taken_over_in_the_same_client) {
  timeline mine = timeline::create(client_, "t");
  const timeline opened = timeline::open(client_, "t");
  const client other = world_.connect();
  const timeline waits = timeline::open(other, "t");
  mine.signal(5);
  mine.hand_over();
  timeline next = opened.take_over(20s);
  EXPECT_TRUE(next.is_own());
  EXPECT_EQ(next.value(), 5U);
  next.signal(6);
  EXPECT_TRUE(opened.wait(6, 20s));
  EXPECT_TRUE(waits.wait(6, 20s));
  // Without time for that, the call does not wait for the name.
  next.hand_over();
  const timeline third = waits.take_over(20s);
  EXPECT_EQ(failure_of([&] { static_cast<void>(opened.take_over(0ms)); }), errc::already_exists);
}

TEST_F(timelines, are_taken_over_after_a_death) {
  agent dies = world_.start();
  dies.request("create t");
  dies.request("signal t 7");
  const timeline opened = timeline::open(client_, "t");
  dies.kill_and_wait();
  timeline next = opened.take_over(60s);
  EXPECT_EQ(next.value(), 7U);
  next.signal(8);
  EXPECT_TRUE(timeline::open(world_.connect(), "t", 10s).try_wait(8));
}

TEST_F(timelines, wait_only_as_long_as_allowed_for_the_next_signaler) {
  timeline mine = timeline::create(client_, "t");
  const client other = world_.connect();
  const timeline waits = timeline::open(other, "t");
  mine.signal(1);
  mine.hand_over();
  EXPECT_TRUE(waits.try_wait(1)) << "reached before";
  EXPECT_EQ(failure_of([&] { static_cast<void>(waits.try_wait(2)); }), errc::gone_or_replaced);
  EXPECT_EQ(failure_of([&] { static_cast<void>(waits.wait(2, 20ms)); }), errc::gone_or_replaced);
  // A name that begins again is not a continuation.
  timeline again = timeline::create(client_, "t");
  EXPECT_EQ(failure_of([&] { static_cast<void>(waits.wait(2, 20ms)); }), errc::gone_or_replaced);
  again.signal(4);
  EXPECT_TRUE(waits.wait(2, 60s));
}

/// As for a timeout: a bool, not an error.
TEST_F(timelines, stop_waiting_for_the_next_signaler) {
  timeline mine = timeline::create(client_, "t");
  const timeline waits = timeline::open(world_.connect(), "t");
  mine.hand_over();
  std::stop_source stop;
  const std::jthread stopper([&] {
    std::this_thread::sleep_for(30ms);
    stop.request_stop();
  });
  EXPECT_FALSE(waits.wait(1, 60s, stop.get_token()));
  EXPECT_FALSE(waits.wait(1, 60s, stop.get_token())) << "requested before";
}

TEST_F(timelines, belong_to_a_segment) {
  gpushm::segment mine = client_.create("s", {.size_bytes = 4'096, .device = "host"});
  std::vector<timeline> timelines = timeline::create_for(client_, mine, 64);
  mine.publish();
  client other = world_.connect();
  const gpushm::segment theirs = other.open("s");
  timelines.at(63).signal(7);
  const timeline last = timeline::open_of(other, theirs, 63, 20s);
  timeline first = timeline::open_of(other, theirs, 0, 20s);
  EXPECT_EQ(last.value(), 7U);
  EXPECT_EQ(first.value(), 0U);
  EXPECT_EQ(failure_of([&] { first.signal(1); }), errc::invalid_argument) << "not its own";
  EXPECT_EQ(failure_of([&] { static_cast<void>(timeline::open_of(other, theirs, 64)); }),
            errc::invalid_argument);
  EXPECT_EQ(failure_of([&] { static_cast<void>(timeline::create_for(client_, mine, 1)); }),
            errc::already_exists);
  EXPECT_EQ(failure_of([&] { static_cast<void>(timeline::create_for(other, theirs, 1)); }),
            errc::invalid_argument)
      << "another process's segment";
  for (const std::size_t count : {std::size_t{0}, std::size_t{65}}) {
    EXPECT_EQ(failure_of([&] { static_cast<void>(timeline::create_for(client_, mine, count)); }),
              errc::invalid_argument);
  }
  timelines.erase(timelines.begin());
  EXPECT_EQ(failure_of([&] { static_cast<void>(first.try_wait(1)); }), errc::peer_died);
  timelines.clear();
  EXPECT_EQ(failure_of([&] { static_cast<void>(last.try_wait(8)); }), errc::peer_died);
  // Its timelines do not go on in the next segment of this name.
  mine.reset();
  gpushm::segment next = client_.create("s2", {.size_bytes = 4'096, .device = "host"});
  EXPECT_EQ(failure_of([&] { static_cast<void>(timeline::open_of(client_, next, 0)); }),
            errc::no_such_segment);
}

TEST_F(timelines, are_not_signaled_by_others) {
  const timeline mine = timeline::create(client_, "t");
  const client other = world_.connect();
  timeline theirs = timeline::open(other, "t");
  EXPECT_EQ(failure_of([&] { theirs.signal(1); }), errc::invalid_argument);
  EXPECT_EQ(mine.value(), 0U);
}

TEST_F(timelines, have_names_of_their_own) {
  const timeline mine = timeline::create(client_, "t");
  const client other = world_.connect();
  EXPECT_EQ(failure_of([&] { static_cast<void>(timeline::create(other, "t")); }),
            errc::already_exists);
  client users = world_.connect();
  EXPECT_EQ(failure_of([&] { static_cast<void>(users.open("t", {})); }), errc::invalid_argument);
  auto memory = users.create("m", {.size_bytes = 4'096, .device = "host"});
  memory.publish();
  EXPECT_EQ(failure_of([&] { static_cast<void>(timeline::open(other, "m")); }),
            errc::invalid_argument);
  EXPECT_EQ(failure_of([&] { static_cast<void>(timeline::open(other, "none")); }),
            errc::no_such_segment);
  EXPECT_EQ(failure_of([&] { static_cast<void>(timeline::open(other, "")); }),
            errc::invalid_argument);
}

TEST_F(timelines, empty_ones_refuse_everything) {
  timeline none;
  EXPECT_FALSE(none);
  EXPECT_EQ(failure_of([&] { static_cast<void>(none.value()); }), errc::invalid_argument);
  EXPECT_EQ(failure_of([&] { none.signal(1); }), errc::invalid_argument);
  EXPECT_EQ(failure_of([&] { none.check(); }), errc::invalid_argument);
  EXPECT_EQ(failure_of([&] { none.prepare(); }), errc::invalid_argument);
  EXPECT_EQ(failure_of([&] { gpushm::stream_batch().wait(none, 1).enqueue(nullptr); }),
            errc::invalid_argument);
}

/// The name can be used at once, and the words of ended timelines are used again: but not while
/// somebody has one open.
/// $GPUSHM_TIMELINES: more of them.
TEST_F(timelines, leave_neither_words_nor_pages) {
  const int count = gpushm_testing::number_from_environment("GPUSHM_TIMELINES", 3'000);
  const client other = world_.connect();
  timeline kept = timeline::create(client_, "kept");
  const timeline reader = timeline::open(other, "kept");
  kept.signal(9);
  kept.reset();
  for (int i = 0; i != count; ++i) {
    timeline mine = timeline::create(client_, "t");
    EXPECT_EQ(mine.value(), 0U);
    if (i % 100 == 0) {
      const timeline theirs = timeline::open(other, "t");
      mine.signal(1);
      EXPECT_TRUE(theirs.wait(1, 20s));
    }
    mine.signal(2);
  }
  EXPECT_EQ(failure_of([&] { static_cast<void>(reader.try_wait(10)); }), errc::peer_died);
  EXPECT_EQ(reader.value(), 9U);
  client users = world_.connect();
  const auto left = users.list("");
  EXPECT_EQ(left.size(), 1U) << "one timeline page";
}

TEST_F(timelines, more_than_one_page) {
  std::vector<timeline> mine;
  for (int i = 0; i != 1'100; ++i) {
    mine.push_back(timeline::create(client_, "t" + std::to_string(i)));
    mine.back().signal(static_cast<std::uint64_t>(i) + 1);
  }
  const client other = world_.connect();
  for (int i = 0; i != 1'100; ++i) {
    EXPECT_EQ(timeline::open(other, "t" + std::to_string(i)).value(),
              static_cast<std::uint64_t>(i) + 1);
  }
  client users = world_.connect();
  EXPECT_EQ(users.list("~signals-").size(), 3U);
}

TEST_F(timelines, end_with_their_process) {
  agent signaler = world_.start(::geteuid() == 0);
  signaler.request("create t");
  signaler.request("signal t 4");
  const timeline theirs = timeline::open(client_, "t", 20s);
  const auto signaler_pid = client_.stat("t").creator_pid;
  EXPECT_NE(signaler_pid, 0);
  EXPECT_TRUE(theirs.wait(4, 20s));
  std::jthread killer([&] {
    std::this_thread::sleep_for(50ms);
    signaler.kill_and_wait();
  });
  try {
    static_cast<void>(theirs.wait(5, 20s));
    ADD_FAILURE() << "it has ended";
  } catch (const gpushm::error& why) {
    EXPECT_EQ(why.code(), errc::peer_died);
    EXPECT_EQ(why.pid(), signaler_pid);
    EXPECT_EQ(why.value(), 4U) << "the last one";
  }
  EXPECT_TRUE(theirs.try_wait(4)) << "it was reached before";
  killer.join();
  agent next = world_.start();
  next.request("create t");
  EXPECT_EQ(timeline::open(client_, "t", 20s).value(), 0U);
}

TEST_F(timelines, wait_for_a_name) {
  std::optional<timeline> mine;
  std::jthread creator([&] {
    std::this_thread::sleep_for(30ms);
    mine.emplace(timeline::create(client_, "late"));
  });
  const client other = world_.connect();
  EXPECT_EQ(timeline::open(other, "late", 20s).value(), 0U);
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(
      failure_of([&] { static_cast<void>(timeline::open(other, "never", 20s, stop.get_token())); }),
      errc::cancelled);
}

TEST_F(timelines, go_on_without_a_broker) {
  timeline mine = timeline::create(client_, "t");
  const client other = world_.connect();
  const timeline theirs = timeline::open(other, "t");
  world_.stop_broker();
  mine.signal(1);
  EXPECT_TRUE(theirs.wait(1, 20s));
}

/// Which numbers its segments as the one before did.
TEST_F(timelines, of_another_broker_are_not_those_of_the_one_before) {
  const timeline mine = timeline::create(client_, "t");
  client second = world_.connect();
  const timeline seen = timeline::open(second, "t");
  world_.stop_broker();
  world_.start_broker();
  const client third = world_.connect();
  timeline next = timeline::create(third, "u");
  for (client* each : {&client_, &second}) {
    EXPECT_TRUE(gpushm_testing::eventually(
        [&] {
          try {
            return each->list("u").size() == 1;
          } catch (const gpushm::error&) {  // of the broker before; the next request connects
            return false;
          }
        },
        20s));
    const timeline opened = timeline::open(*each, "u");
    next.signal(next.value() + 1);
    EXPECT_TRUE(opened.try_wait(next.value()));
  }
  EXPECT_EQ(mine.value(), 0U);
  EXPECT_EQ(seen.value(), 0U);
}

/// Each thread waits for the one before it.
TEST_F(timelines, order_many_threads) {
  constexpr int threads = 32;
  constexpr std::uint64_t rounds = 200;
  std::vector<timeline> timelines;
  for (int i = 0; i != threads; ++i) {
    timelines.push_back(timeline::create(client_, "t" + std::to_string(i)));
  }
  std::uint64_t plain = 0;  // ordered by the timelines alone
  std::vector<std::jthread> running;
  for (std::size_t i = 0; i != threads; ++i) {
    running.emplace_back([&, i] {
      for (std::uint64_t round = 1; round <= rounds; ++round) {
        const timeline& before = timelines[(i + threads - 1) % threads];
        ASSERT_TRUE(before.wait(i == 0 ? round - 1 : round, 60s));
        ++plain;
        timelines[i].signal(round);
      }
    });
  }
  running.clear();
  EXPECT_EQ(plain, threads * rounds);
}

}  // namespace
