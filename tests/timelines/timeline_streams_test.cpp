// SPDX-License-Identifier: Apache-2.0
// Timelines of CUDA streams: on the fake driver everywhere, and on real GPUs if there are any.
#include <csignal>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/timelines/timeline_world.hpp"

namespace {

using namespace std::chrono_literals;
using gpushm::timeline;
using gpushm_testing::eventually;
using gpushm_tests::agent;
using gpushm_tests::gpus;
using gpushm_tests::name_of;
using gpushm_tests::test_on_gpus;

class timeline_streams : public test_on_gpus {
 protected:
  [[nodiscard]] agent start(int gpu = 0, const std::string& connections = {}) const {
    agent started = world_->start(false, connections);
    started.request("device " + std::to_string(gpu));
    return started;
  }
};

TEST_P(timeline_streams, order_the_streams_of_two_processes) {
  agent a = start();
  agent b = start(peer());
  a.request("create a");
  b.request("create b");
  a.request("open b 20000");
  b.request("open a 20000");
  a.send("rounds 1 a b 500");
  b.request("rounds 0 b a 500");
  EXPECT_TRUE(a.reply().starts_with("ok "));
  EXPECT_EQ(a.request("value b"), "500");
  // A CPU signals a stream, and a stream a CPU.
  b.request("stream_wait 0 a 501 0");
  b.request("stream_signal 0 b 501");
  EXPECT_EQ(b.request("query 0"), "busy");
  a.request("signal a 501");
  EXPECT_EQ(a.request("wait b 501 20000"), "reached");
  b.request("sync 0");
  b.request("check a");
}

TEST_P(timeline_streams, see_what_was_written_before) {
  agent writer = start();
  agent reader = start(peer());
  constexpr int rounds = 20;
  writer.request("segment m 8388608 0");
  writer.request("create written");
  reader.request("open_segment m " + std::to_string(peer()));
  reader.request("create read");
  reader.request("open written 20000");
  writer.request("open read 20000");
  for (int i = 1; i <= rounds; ++i) {
    const std::string value = std::to_string(i);
    reader.request("stream_wait 0 written " + value + " 0");
    reader.request("load 0 m");
    reader.request("stream_signal 0 read " + value);
    writer.request("stream_wait 0 read " + std::to_string(i - 1) + " 0");
    writer.request("fill 0 m " + value);
    writer.request("stream_signal 0 written " + value);
    reader.request("sync 0");
    EXPECT_EQ(reader.request("loaded"), value);
  }
}

TEST_P(timeline_streams, that_wait_do_not_hold_copies_of_segments) {
  agent signaler = start();
  agent waiter = start();
  signaler.request("create t");
  waiter.request("open t 20000");
  waiter.request("segment m 4194304 0");
  waiter.request("blocking_stream");
  waiter.request("stream_wait 1 t 1 0");
  EXPECT_EQ(waiter.request("copies m"), "");
  EXPECT_EQ(waiter.request("query 1"), "busy");
  signaler.request("signal t 1");
  waiter.request("sync 1");
  waiter.request("check t");
}

TEST_P(timeline_streams, are_waited_for_by_copies_of_segments_that_name_them) {
  agent signaler = start();
  agent waiter = start();
  signaler.request("create t");
  waiter.request("open t 20000");
  waiter.request("segment m 4194304 0");
  waiter.request("stream_wait 0 t 1 0");
  waiter.request("fill 0 m 9");
  waiter.send("copies_on 0 m");
  signaler.request("signal t 1");
  EXPECT_EQ(waiter.reply(), "ok 9");
  waiter.request("capture");
  EXPECT_EQ(waiter.code("copies_on 0 m"), "invalid_argument");
  waiter.request("end_capture");
}

TEST_P(timeline_streams, copies_of_segments_work_after_a_reset) {
  if (GetParam() == gpus::real) {
    GTEST_SKIP() << "a reset of a GPU ends the work of others";
  }
  agent only = start();
  only.request("segment m 4194304 0");
  EXPECT_EQ(only.request("copies m"), "");
  only.request("reset 0");
  only.request("device 0");
  EXPECT_EQ(only.request("copies m"), "");
}

TEST_P(timeline_streams, are_released_when_the_signaler_dies) {
  agent signaler = start();
  agent waiter = start();
  signaler.request("create t");
  waiter.request("open t 20000");
  signaler.request("stream_signal 0 t 1");
  waiter.request("stream_wait 0 t 1 0");
  waiter.request("sync 0");
  waiter.request("check t");
  waiter.request("stream_wait 0 t 2 0");
  EXPECT_EQ(waiter.code("check t"), "invalid_argument") << "not reached yet";
  signaler.kill_and_wait();
  waiter.request("sync 0");
  EXPECT_EQ(waiter.code("check t"), "peer_died");
  EXPECT_EQ(waiter.request("value t"), "1");
}

TEST_P(timeline_streams, of_sixty_four_processes_are_released_when_their_signaler_dies) {
  constexpr int processes = 64;
  agent signaler = start();
  signaler.request("create t");
  signaler.request("stream_signal 0 t 1");
  std::vector<agent> waiters;
  for (int i = 0; i != processes; ++i) {
    waiters.push_back(world_->start());
    waiters.back().send("device 0");
  }
  for (agent& each : waiters) {
    ASSERT_EQ(each.reply(), "ok ");
    each.request("open t 20000");
    each.request("stream_wait 0 t 2 0");
    EXPECT_EQ(each.request("query 0"), "busy");
    each.send("sync 0");
  }
  signaler.kill_and_wait();
  for (agent& each : waiters) {
    EXPECT_EQ(each.reply(), "ok ");
    EXPECT_EQ(each.code("check t"), "peer_died");
    EXPECT_EQ(each.request("value t"), "1");
  }
}

TEST_P(timeline_streams, are_released_by_a_hand_over) {
  agent signaler = start();
  agent waiter = start();
  agent next = start();
  signaler.request("create t");
  signaler.request("stream_signal 0 t 1");
  waiter.request("open t 20000");
  waiter.request("stream_wait 0 t 1 0");
  waiter.request("sync 0");
  waiter.request("check t");
  waiter.request("stream_wait 0 t 2 0");
  next.request("open t 20000");  // has it open before it is handed over
  next.send("take_over t 20000");
  signaler.request("hand_over t");
  EXPECT_EQ(next.reply(), "ok ");
  waiter.request("sync 0");
  EXPECT_EQ(waiter.code("check t"), "gone_or_replaced");
  waiter.request("check t");  // reported once
  waiter.request("wait t 1 20000");
  waiter.request("stream_wait 0 t 2 0");
  next.request("stream_signal 0 t 2");
  waiter.request("sync 0");
  waiter.request("check t");
  EXPECT_EQ(waiter.request("value t"), "2");
}

TEST_P(timeline_streams, take_a_batch) {
  agent a = start();
  agent b = start();
  a.request("create a");
  a.request("create a2");
  b.request("create b");
  a.request("open b 20000");
  b.request("open a 20000");
  b.request("open a2 20000");
  b.request("batch 0 wait a 1 wait a2 1 signal b 1");
  a.request("batch 0 signal a 1 signal a2 1 wait b 1");
  a.request("sync 0");
  b.request("sync 0");
  EXPECT_EQ(a.request("value b"), "1");
  EXPECT_EQ(a.code("batch 0 signal a 2 signal a 2"), "invalid_argument");
  EXPECT_EQ(a.code("batch 0 signal a 2 signal b 2"), "invalid_argument") << "not its own";
  EXPECT_EQ(a.request("value a"), "1") << "nothing was enqueued";
  a.request("batch 0");
  std::string many = "batch 0";
  for (int i = 0; i != 65; ++i) {
    many += " signal a " + std::to_string(i + 2);
  }
  EXPECT_EQ(a.code(many), "invalid_argument");
}

TEST_P(timeline_streams, go_on_after_a_reset_of_the_device) {
  agent a = start();
  agent b = start();
  a.request("create t");
  b.request("open t 20000");
  b.request("stream_wait 0 t 1 0");
  a.request("stream_signal 0 t 1");
  a.request("sync 0");
  b.request("sync 0");
  for (agent* const each : {&a, &b}) {
    each->request("reset 0");
    each->request("device 0");
  }
  b.request("stream_wait 0 t 2 0");
  a.request("stream_signal 0 t 2");
  b.request("sync 0");
  b.request("check t");
  EXPECT_EQ(b.request("value t"), "2");
}

/// The driver ends a registration when all streams are idle: this must not wait for one that waits
/// for what the same thread signals next.
TEST_P(timeline_streams, are_not_waited_for_when_another_timeline_is_closed) {
  agent signaler = world_->start();
  agent waiter = start();
  for (const char* const name : {"a", "b"}) {  // of two processes: two pages
    agent& owner = name[0] == 'a' ? signaler : waiter;
    owner.request(std::string("create ") + name);
  }
  waiter.request("open a 20000");
  waiter.request("stream_wait 0 a 1 0");
  signaler.request("signal a 1");
  waiter.request("sync 0");
  waiter.request("stream_wait 0 b 1 0");
  EXPECT_EQ(waiter.request("query 0"), "busy");
  waiter.send("close a");
  EXPECT_EQ(waiter.reply(std::chrono::seconds(20)), "ok ");
  waiter.request("signal b 1");
  waiter.request("sync 0");
  waiter.request("check b");
}

TEST_P(timeline_streams, refuse_a_value_that_is_not_larger) {
  agent a = start();
  a.request("create t");
  a.request("stream_signal 0 t 7");
  EXPECT_EQ(a.code("stream_signal 0 t 7"), "invalid_argument");
  EXPECT_EQ(a.code("signal t 6"), "invalid_argument");
  EXPECT_EQ(a.code("stream_signal 0 t 4611686018427387904"), "value_out_of_range");
  EXPECT_EQ(a.code("stream_wait 0 t 4611686018427387904 0"), "value_out_of_range");
  a.request("signal t 8");
  a.request("sync 0");
}

/// Closing waits for what the stream has to store: the word then stays ended.
TEST_P(timeline_streams, close_after_the_last_store) {
  agent a = start();
  agent b = start();
  b.request("create gate");
  a.request("open gate 20000");
  a.request("create t");
  b.request("open t 20000");
  a.request("stream_wait 0 gate 1 0");
  a.request("stream_signal 0 t 5");
  a.send("close t");
  b.request("signal gate 1");
  EXPECT_TRUE(a.reply().starts_with("ok "));
  EXPECT_EQ(b.request("wait t 5 20000"), "reached");
  EXPECT_EQ(b.code("wait t 6 20000"), "peer_died");
  EXPECT_EQ(b.request("value t"), "5");
}

/// As many waiting streams as connections stop all others: the library never lets it come to that.
class many_waits : public timeline_streams {};

TEST_P(many_waits, never_stop_the_one_that_signals) {
  for (const std::string connections : {"1", "8", "32"}) {
    agent a = start(0, connections);
    a.request("streams 64");
    a.request("create t");
    const int limit = connections == "1" ? 0 : std::stoi(connections) / 2;
    int waiting = 0;
    for (int i = 1; i <= 64; ++i) {
      a.send("stream_wait " + std::to_string(i) + " t 1 0");
      const std::string got = a.reply();
      waiting += got.starts_with("ok ") ? 1 : 0;
      EXPECT_TRUE(got.starts_with("ok ") || got.starts_with("error too_many_waits")) << got;
    }
    EXPECT_EQ(waiting, limit) << connections;
    EXPECT_EQ(a.request("waiting"),
              std::to_string(limit) + " " + std::to_string(limit) + " " + connections);
    a.request("stream_signal 0 t 1");
    for (int i = 0; i <= 64; ++i) {
      a.request("sync " + std::to_string(i));
    }
    EXPECT_EQ(a.request("waiting"), "0 " + std::to_string(limit) + " " + connections);
    // Now the value is reached: all may wait for it.
    for (int i = 1; i <= 64; ++i) {
      a.request("stream_wait " + std::to_string(i) + " t 1 0");
    }
  }
}

TEST_P(many_waits, wait_on_the_cpu_when_too_many_streams_wait) {
  agent a = start(0, "1");
  agent b = start();
  b.request("create t");
  a.request("open t 20000");
  a.send("stream_wait 0 t 1 20000");
  b.request("signal t 1");
  EXPECT_TRUE(a.reply().starts_with("ok "));
  a.request("sync 0");
  a.request("check t");
  // Ended meanwhile: as on a stream, `check` says so.
  a.send("stream_wait 0 t 2 20000");
  b.request("close t");
  EXPECT_TRUE(a.reply().starts_with("ok "));
  a.request("sync 0");
  EXPECT_EQ(a.code("check t"), "peer_died");
}

/// An old driver or a virtual GPU; the text says why, and what works instead.
TEST(timeline_streams_of_a_driver_without_them, say_so) {
  const gpushm_tests::timeline_world world(true);
  for (const char* const call : {"cuStreamWaitValue64_v2", "cuMemHostRegister_v2"}) {
    agent waiter = world.start_alone(false, {}, std::string(call) + ":*=801");
    waiter.request("device 0");
    waiter.request("create_local t");
    const std::string why = waiter.fails("stream_wait 0 t 1 0");
    EXPECT_THAT(why, testing::StartsWith("driver_error"));
    EXPECT_THAT(why, testing::HasSubstr("streams of this GPU cannot wait for or signal"));
    EXPECT_THAT(why, testing::HasSubstr("on the CPU"));
    waiter.request("signal t 1");
    EXPECT_EQ(waiter.request("wait t 1 0"), "reached") << "CPUs need no driver";
  }
}

INSTANTIATE_TEST_SUITE_P(all, timeline_streams, testing::Values(gpus::fake, gpus::real), name_of);
INSTANTIATE_TEST_SUITE_P(all, many_waits, testing::Values(gpus::fake, gpus::real), name_of);

}  // namespace
