// SPDX-License-Identifier: Apache-2.0
// Channels of CUDA streams and several processes: on the fake driver everywhere, and on real GPUs
// if there are any. Each item is filled with its number by the producer's stream; consumers compare
// every byte.
#include <csignal>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "tests/timelines/timeline_world.hpp"

namespace {

using namespace std::chrono_literals;
using gpushm_tests::agent;
using gpushm_tests::gpus;
using gpushm_tests::name_of;
using gpushm_tests::test_on_gpus;

class channel_streams : public test_on_gpus {
 protected:
  /// Every second one is PID 1 in a PID namespace of its own, if this process may make one.
  [[nodiscard]] agent start(int gpu = 0) {
    agent started = world_->start(::geteuid() == 0 && ++count_ % 2 == 0);
    started.request("device " + std::to_string(gpu));
    return started;
  }
  [[nodiscard]] static std::string consume(int gpu, int held = 0) {
    return "consume c " + std::to_string(held) + " " + std::to_string(gpu);
  }

  int count_ = 0;
};

TEST_P(channel_streams, bring_each_item_to_each_process) {
  agent producer = start();
  producer.request("produce c 6 1048576 0");
  agent near = start();
  agent far = start(peer());
  agent newest = start();
  near.request(consume(0));
  far.request(consume(peer()));
  newest.request(consume(0, 1));
  near.send("take 1000 1");
  far.send("take 1000 1");
  newest.send("take 30 1");
  producer.request("publish 1000");
  EXPECT_EQ(near.reply(), "ok 1 1000 1000");
  EXPECT_EQ(far.reply(), "ok 1 1000 1000");
  near.request("end");
  far.request("end");
  newest.send("take 1 1");  // it may have waited for more than were left
  producer.request("publish 60");
  EXPECT_TRUE(newest.reply().starts_with("ok "));
  EXPECT_TRUE(newest.reply().starts_with("ok "));
}

/// Each stream publishes after the one before.
TEST_P(channel_streams, are_filled_by_several_streams) {
  agent producer = start();
  producer.request("streams 2");
  producer.request("produce c 6 1048576 0");
  agent consumer = start(peer());
  consumer.request(consume(peer()));
  consumer.send("take 600 1");
  producer.request("publish 600 3");
  EXPECT_EQ(consumer.reply(), "ok 1 600 600");
}

TEST_P(channel_streams, go_on_when_a_consumer_dies) {
  agent producer = start();
  producer.request("produce c 3 65536 0");
  agent stays = start();
  stays.request(consume(0));
  agent dies = start();
  dies.request(consume(0));
  stays.send("take 300 1");
  dies.send("take 1000 1");
  producer.send("publish 300");
  dies.kill_and_wait();
  EXPECT_EQ(stays.reply(), "ok 1 300 300");
  EXPECT_EQ(producer.reply(), "ok 300");
}

TEST_P(channel_streams, end_after_the_last_good_item_of_a_dead_producer) {
  agent producer = start();
  producer.request("produce c 4 65536 0");
  agent consumer = start();
  consumer.request(consume(0));
  producer.request("publish 3");
  producer.request("sync 0");
  producer.kill_and_wait();
  EXPECT_EQ(consumer.request("take 3 1"), "1 3 3");
  // The next one continues: with numbers that were not used.
  agent next = start();
  next.request("produce c 4 65536 0");
  next.request("publish 4");
  const std::string taken = consumer.request("take 4 1");
  EXPECT_EQ(taken, "4 7 4");
  agent late = start();
  late.request(consume(0));
  EXPECT_EQ(late.request("take 1 1"), "7 7 1");
  // It closes the channel.
  next.request("end");
  EXPECT_EQ(consumer.request("take 1 1"), "0 0 0");
  EXPECT_EQ(consumer.request("ended"), "yes");
}

TEST_P(channel_streams, survive_producers_that_die_at_work) {
  agent consumer = start();
  agent second = start();
  std::optional<agent> producer(start());
  producer->request("produce c 4 262144 0");
  consumer.request(consume(0));
  second.request(consume(0, 1));
  constexpr int deaths = 5;
  consumer.send("take 100000 1");
  second.send("take 100000 1");
  for (int i = 0; i != deaths; ++i) {
    producer->request("publish 20");
    producer->send("publish 100000");
    std::this_thread::sleep_for(std::chrono::milliseconds(5 * i));  // somewhere in its work
    producer->kill_and_wait();
    producer.emplace(start());
    producer->request("produce c 4 262144 0");
  }
  producer->request("publish 20");
  producer->request("end");
  EXPECT_THAT(consumer.reply(), testing::StartsWith("ok 1 "));
  EXPECT_THAT(second.reply(), testing::StartsWith("ok "));
  EXPECT_EQ(consumer.request("ended"), "yes");
}

INSTANTIATE_TEST_SUITE_P(all, channel_streams, testing::Values(gpus::fake, gpus::real), name_of);

}  // namespace
