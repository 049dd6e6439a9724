// SPDX-License-Identifier: Apache-2.0
// Timelines that travel by ticket, without a broker and through one.
#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/files/sanitizers.hpp"
#include "base/text/hex.hpp"
#include "protocol/wire/ticket.hpp"
#include "tests/support/process/hex.hpp"
#include "tests/support/process/proc_counters.hpp"
#include "tests/support/raw_session/forked_process.hpp"
#include "tests/timelines/timeline_world.hpp"

namespace {

using namespace std::chrono_literals;
using gpushm::client;
using gpushm::errc;
using gpushm::timeline;
using gpushm_testing::eventually;
using gpushm_tests::agent;
using gpushm_tests::failure_of;
using gpushm_tests::gpus;
using gpushm_tests::name_of;
using gpushm_tests::test_on_gpus;
using gpushm_tests::timeline_world;
using bytes = std::vector<std::byte>;

std::optional<errc> failure_of_import(const bytes& ticket) {
  return failure_of([&] { static_cast<void>(timeline::from_ticket(ticket)); });
}

/// Of this process, without the broker that `timeline_world` has in it.
std::size_t open_files() {
  return gpushm_testing::total(gpushm_testing::count_descriptors(::getpid()));
}

class timelines_by_ticket : public testing::Test {
 protected:
  /// A timeline of an agent, and its ticket.
  bytes create(agent& signaler, const std::string& name = "t") {
    signaler.request("create_local " + name);
    return gpushm_testing::bytes_of_hex(signaler.request("ticket " + name));
  }

  timeline_world world_{true};
};

TEST_F(timelines_by_ticket, order_processes) {
  agent signaler = world_.start_alone();
  const bytes ticket = create(signaler);
  const timeline theirs = timeline::from_ticket(ticket);
  EXPECT_FALSE(theirs.is_own());
  EXPECT_TRUE(theirs.is_writable()) << "it is advisory";
  EXPECT_EQ(theirs.name(), "");
  EXPECT_FALSE(theirs.try_wait(1));
  signaler.request("signal t 3");
  EXPECT_TRUE(theirs.wait(2, 20s));
  EXPECT_EQ(theirs.value(), 3U);
  // Who has imported it can pass it on.
  agent third = world_.start_alone();
  third.request("import t " + gpushm::base::hex_text(theirs.ticket()));
  third.send("wait t 4 20000");
  signaler.request("signal t 4");
  EXPECT_EQ(third.reply(), "ok reached");
  EXPECT_EQ(third.code("signal t 5"), "invalid_argument") << "another process signals it";
  signaler.request("close t");
  try {
    static_cast<void>(theirs.wait(5, 20s));
    ADD_FAILURE() << "it was closed";
  } catch (const gpushm::error& why) {
    EXPECT_EQ(why.code(), errc::peer_died);
    EXPECT_EQ(why.pid(), gpushm::describe_ticket(ticket).exporter_pid);
    EXPECT_EQ(why.value(), 4U);
  }
  EXPECT_EQ(theirs.value(), 4U);
}

TEST_F(timelines_by_ticket, order_one_process) {
  timeline mine = timeline::create_local();
  const timeline again = timeline::from_ticket(mine.ticket());
  EXPECT_FALSE(again.is_own());
  mine.signal(1);
  EXPECT_TRUE(again.try_wait(1));
  EXPECT_EQ(failure_of([&] { mine.hand_over(); }), errc::invalid_argument);
  EXPECT_EQ(failure_of([&] { static_cast<void>(again.take_over(0ms)); }), errc::invalid_argument);
  const bytes ticket = mine.ticket();
  mine.reset();
  EXPECT_EQ(failure_of([&] { static_cast<void>(again.try_wait(2)); }), errc::peer_died);
}

TEST_F(timelines_by_ticket, end_with_their_process) {
  agent signaler = world_.start_alone();
  const bytes first = create(signaler, "a");
  const timeline a = timeline::from_ticket(first);
  const timeline b = timeline::from_ticket(create(signaler, "b"));
  signaler.request("signal a 7");
  std::jthread killer([&] {
    std::this_thread::sleep_for(20ms);
    signaler.kill_and_wait();
  });
  EXPECT_EQ(failure_of([&] { static_cast<void>(a.wait(8, 20s)); }), errc::peer_died);
  EXPECT_EQ(failure_of([&] { static_cast<void>(b.wait(1, 20s)); }), errc::peer_died);
  EXPECT_EQ(a.value(), 7U);
  EXPECT_EQ(b.value(), 0U);
  EXPECT_TRUE(a.try_wait(7));
  const timeline again = timeline::from_ticket(first);
  EXPECT_EQ(again.value(), 7U) << "this process has its page";
  agent late = world_.start_alone();
  EXPECT_EQ(late.code("import t " + gpushm::base::hex_text(first)), "peer_died");
}

TEST_F(timelines_by_ticket, end_when_their_process_becomes_another_program) {
  agent signaler = world_.start_alone();
  const timeline theirs = timeline::from_ticket(create(signaler));
  signaler.send("become");
  EXPECT_EQ(failure_of([&] { static_cast<void>(theirs.wait(1, 30s)); }), errc::peer_died);
}

TEST_F(timelines_by_ticket, say_why_they_cannot_be_reached) {
  agent signaler = world_.start_alone();
  const bytes ticket = create(signaler);
  const std::string text = gpushm::base::hex_text(ticket);
  agent in_container = world_.start_alone(true);
  EXPECT_EQ(in_container.code("import t " + text), "peer_unreachable");
  agent other = world_.start_alone();
  if (other.request("user").empty()) {
    EXPECT_EQ(other.code("import t " + text), "permission_denied");
  }
  signaler.request("close t");
  EXPECT_EQ(failure_of_import(ticket), errc::gone_or_replaced);
  signaler.kill_and_wait();
  EXPECT_EQ(failure_of_import(ticket), errc::peer_died);
  EXPECT_EQ(failure_of([&] { static_cast<void>(gpushm::import_memory(ticket)); }),
            errc::invalid_ticket);
}

TEST_F(timelines_by_ticket, leave_neither_pages_nor_files) {
  agent signaler = world_.start_alone();
  std::vector<timeline> kept;
  static_cast<void>(timeline::from_ticket(create(signaler, "first")));
  const std::size_t before = open_files();
  for (int i = 0; i != 20'000; ++i) {
    timeline mine = timeline::create_local();
    const timeline reader = timeline::from_ticket(mine.ticket());
    mine.signal(1);
    ASSERT_TRUE(reader.try_wait(1));
    ASSERT_FALSE(reader.try_wait(2));
    if (i % 20 == 0) {
      kept.push_back(std::move(mine));
      ASSERT_EQ(kept.back().value(), 1U);
    }
  }
  EXPECT_LE(open_files(), before + 60) << "a page for each 512";
  kept.clear();
  EXPECT_TRUE(eventually([&] { return open_files() == before; }, 20s)) << open_files();
  for (int i = 0; i != 300; ++i) {
    const bytes ticket = create(signaler, "t" + std::to_string(i));
    kept.push_back(timeline::from_ticket(ticket));
    ASSERT_EQ(kept.back().value(), 0U);
  }
  EXPECT_LE(open_files(), before + 8) << "one page of one process, and its end";
  kept.clear();
  EXPECT_TRUE(eventually([&] { return open_files() == before; }, 20s)) << open_files();
}

TEST_F(timelines_by_ticket, are_not_usable_in_a_forked_child) {
  if (gpushm::base::under_thread_sanitizer) {
    GTEST_SKIP() << "ThreadSanitizer allows no thread in a forked child";
  }
  agent signaler = world_.start_alone();
  timeline mine = timeline::create_local();
  const bytes ticket = create(signaler);
  const timeline theirs = timeline::from_ticket(ticket);
  auto child = gpushm_testing::forked_process::start({}, [&](auto& parent) {
    const auto refused = [&](auto&& call) {
      if (failure_of(call) != errc::forked) {
        throw std::runtime_error("a child has used an object of its parent");
      }
    };
    refused([&] { mine.signal(1); });
    refused([&] { static_cast<void>(theirs.try_wait(0)); });
    refused([&] { static_cast<void>(mine.ticket()); });
    timeline own = timeline::create_local();
    static_cast<void>(timeline::from_ticket(ticket));  // with a watch of its own
    parent.send_line(gpushm::base::hex_text(own.ticket()));
    parent.wait_for_go();
    own.signal(5);
    parent.wait_for_go();
  });
  const timeline of_child =
      timeline::from_ticket(gpushm_testing::bytes_of_hex(child.wait_line(20s)));
  child.go();
  EXPECT_TRUE(of_child.wait(5, 20s));
  child.kill();
  EXPECT_EQ(failure_of([&] { static_cast<void>(of_child.wait(6, 20s)); }), errc::peer_died);
  mine.signal(1);
  EXPECT_EQ(mine.value(), 1U);
}

TEST_F(timelines_by_ticket, of_hostile_processes_do_no_harm) {
  agent signaler = world_.start_alone();
  const bytes good = create(signaler);
  const auto described = gpushm::wire::decode_ticket(good);
  static_cast<void>(timeline::from_ticket(good));
  const std::size_t before = open_files();
  std::mt19937_64 random(7);
  for (int i = 0; i != 2'000; ++i) {
    auto changed = described;
    switch (random() % 5) {
      case 0:
        changed.word->file = static_cast<std::int32_t>(random() % 40);
        break;
      case 1:
        changed.word->life_pipe = static_cast<std::int32_t>(random() % 40);
        break;
      case 2:
        changed.word->inode += random() % 3;
        changed.exporter.pid = static_cast<std::int32_t>(random() % 400);
        break;
      case 3:
        changed.exporter.start_time += random() % 3;
        changed.word->word = random() % 512;
        break;
      default:
        changed.exporter.pid = ::getpid();
        changed.exporter.start_time = 0;
        changed.word->file = static_cast<std::int32_t>(random() % 40);
    }
    const auto failure = failure_of_import(gpushm::wire::encode_ticket(changed));
    ASSERT_TRUE(!failure || failure == errc::gone_or_replaced || failure == errc::peer_died ||
                failure == errc::invalid_ticket || failure == errc::peer_unreachable ||
                failure == errc::permission_denied)
        << gpushm::to_string(*failure);
  }
  EXPECT_TRUE(eventually([&] { return open_files() == before; }, 20s)) << open_files();
}

TEST_F(timelines_by_ticket, through_a_broker) {
  const client client_ = world_.connect();
  timeline mine = timeline::create(client_, "t");
  const bytes ticket = mine.ticket();
  agent in_container = world_.start_alone(true);
  in_container.request("import t " + gpushm::base::hex_text(ticket));
  in_container.send("wait t 1 20000");
  mine.signal(1);
  EXPECT_EQ(in_container.reply(), "ok reached");
  const timeline theirs = timeline::from_ticket(ticket);
  EXPECT_EQ(theirs.name(), "t");
  EXPECT_EQ(theirs.ticket(), ticket);
  mine.reset();
  EXPECT_EQ(in_container.code("wait t 2 20000"), "peer_died");
  mine = timeline::create(client_, "t");
  EXPECT_EQ(in_container.code("import u " + gpushm::base::hex_text(ticket)), "gone_or_replaced");
}

TEST_F(timelines_by_ticket, of_a_segment_are_exported_with_it) {
  client importer = world_.connect();
  gpushm::segment segment = importer.create("s", {.size_bytes = 4'096, .device = "host"});
  const std::vector<timeline> mine = timeline::create_for(importer, segment, 2);
  segment.publish();
  const client other = world_.connect();
  const timeline theirs = timeline::open_of(other, gpushm::client(world_.connect()).open("s"), 1);
  for (const timeline* const each : {&mine.front(), &theirs}) {
    EXPECT_EQ(failure_of([&] { static_cast<void>(each->ticket()); }), errc::invalid_argument);
  }
}

class timeline_streams_by_ticket : public test_on_gpus {};

TEST_P(timeline_streams_by_ticket, are_released_when_the_signaler_dies) {
  agent signaler = world_->start_alone();
  agent waiter = world_->start_alone();
  signaler.request("device 0");
  waiter.request("device " + std::to_string(peer()));
  signaler.request("create_local t");
  waiter.request("import t " + signaler.request("ticket t"));
  signaler.request("stream_signal 0 t 1");
  waiter.request("stream_wait 0 t 1 0");
  waiter.request("sync 0");
  waiter.request("check t");
  waiter.request("stream_wait 0 t 2 0");
  EXPECT_EQ(waiter.request("query 0"), "busy");
  signaler.kill_and_wait();
  waiter.request("sync 0");
  EXPECT_EQ(waiter.code("check t"), "peer_died");
  EXPECT_EQ(waiter.request("value t"), "1");
}

INSTANTIATE_TEST_SUITE_P(all,
                         timeline_streams_by_ticket,
                         testing::Values(gpus::fake, gpus::real),
                         name_of);

}  // namespace
