// SPDX-License-Identifier: Apache-2.0
// Channels whose consumers share the work: each item is used by one of them.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/timelines/timeline_world.hpp"

namespace {

using namespace std::chrono_literals;
using gpushm::channel_consumer;
using gpushm::channel_item;
using gpushm::channel_producer;
using gpushm::client;
using gpushm::consumer_mode;
using gpushm::errc;
using gpushm_testing::eventually;
using gpushm_tests::agent;
using gpushm_tests::failure_of;
using gpushm_tests::gpus;
using gpushm_tests::name_of;
using gpushm_tests::test_on_gpus;
using gpushm_tests::timeline_world;

class work_sharing : public testing::Test {
 protected:
  [[nodiscard]] static channel_producer create(const client& client, std::uint32_t slots) {
    return channel_producer::create(
        client, "c", {.slot_bytes = 1'024, .slots = slots, .device = "host"});
  }
  [[nodiscard]] static channel_consumer join(const client& client, std::uint32_t held = 0) {
    return channel_consumer::open(
        client, "c", {.mode = consumer_mode::share, .held = held, .timeout = 60s, .resume = 60s});
  }
  static std::uint64_t publish(channel_producer& producer, std::uint64_t count) {
    std::uint64_t last = 0;
    for (std::uint64_t i = 0; i != count; ++i) {
      auto slot = producer.acquire(60s);
      if (!slot) {
        ADD_FAILURE() << "no slot after item " << last;
        return last;
      }
      last = producer.stats().announced + 1;
      std::fill_n(static_cast<std::uint64_t*>(slot->data()), slot->bytes() / sizeof last, last);
      slot->publish();
    }
    return last;
  }
  [[nodiscard]] static bool is_whole(const channel_item& item) {
    const auto* const words = static_cast<const std::uint64_t*>(item.data());
    return std::all_of(words,
                       words + item.bytes() / sizeof(std::uint64_t),
                       [&](std::uint64_t word) { return word == item.number(); });
  }

  timeline_world world_{true};
  client client_ = world_.connect();
};

TEST_F(work_sharing, gives_each_item_to_one_consumer) {
  constexpr std::uint64_t items = 20'000;
  channel_producer producer = create(client_, 12);
  std::vector<std::atomic<int>> uses(items + 1);
  std::atomic<std::uint64_t> by_the_slow_one{0};
  std::vector<std::jthread> readers;
  std::atomic<int> joined{0};
  for (int i = 0; i != 4; ++i) {
    readers.emplace_back([&, i] {
      const client own = world_.connect();
      channel_consumer consumer = join(own);
      ++joined;
      while (auto item = consumer.next(60s)) {
        ASSERT_TRUE(is_whole(*item));
        ++uses.at(item->number());
        if (i == 0) {
          ++by_the_slow_one;
          std::this_thread::sleep_for(5ms);
        }
        item->release();
      }
      EXPECT_TRUE(consumer.has_ended());
    });
  }
  // Others get what they would get without these.
  readers.emplace_back([&] {
    const client own = world_.connect();
    channel_consumer consumer = channel_consumer::open(own, "c", {.timeout = 60s});
    ++joined;
    std::uint64_t expected = 1;
    while (auto item = consumer.next(60s)) {
      ASSERT_TRUE(item->number() == expected++ && is_whole(*item));
      item->release();
    }
    EXPECT_EQ(expected, items + 1);
  });
  ASSERT_TRUE(eventually([&] { return joined == 5; }, 60s));
  publish(producer, items);
  producer.reset();
  readers.clear();
  EXPECT_TRUE(
      std::all_of(uses.begin() + 1, uses.end(), [](const auto& each) { return each == 1; }));
  EXPECT_GT(by_the_slow_one, 0U);
  EXPECT_LT(by_the_slow_one, items / 8) << "work goes to those who have time";
}

TEST_F(work_sharing, waits_when_each_has_as_many_items_as_it_may_hold) {
  channel_producer producer = create(client_, 8);
  const client other = world_.connect();
  channel_consumer one = join(other, 1);
  channel_consumer two = join(other, 2);
  publish(producer, 3);
  EXPECT_FALSE(producer.acquire(0ms));
  auto item = two.next(60s);
  ASSERT_TRUE(item);
  item->release();
  EXPECT_EQ(publish(producer, 1), 4U);
  EXPECT_FALSE(producer.acquire(0ms));
  EXPECT_EQ(failure_of([&] { static_cast<void>(join(other, 17)); }), errc::invalid_argument);
}

TEST_F(work_sharing, gives_what_one_has_not_released_to_another_one) {
  channel_producer producer = create(client_, 12);
  const client other = world_.connect();
  channel_consumer leaves = join(other, 4);
  publish(producer, 4);
  std::vector<channel_item> held;
  for (int i = 0; i != 4; ++i) {
    held.push_back(leaves.next(60s).value());
  }
  held.at(0).release();
  held.at(2).release();  // kept back: the one before is not released
  const client third = world_.connect();
  channel_consumer stays = join(third, 8);
  leaves.reset();
  std::set<std::uint64_t> used;
  for (int i = 0; i != 3; ++i) {
    auto item = stays.next(60s);
    ASSERT_TRUE(item);
    EXPECT_TRUE(is_whole(*item));
    used.insert(item->number());
    item->release();
  }
  EXPECT_EQ(used, (std::set<std::uint64_t>{2, 3, 4}));
  EXPECT_FALSE(stays.next(0ms));
}

TEST_F(work_sharing, gives_what_a_dead_one_had_to_another_one) {
  channel_producer producer = create(client_, 12);
  agent dies = world_.start();
  dies.request("share c 3");
  publish(producer, 3);
  EXPECT_EQ(dies.request("hold 3"), "1 2 3");
  const client other = world_.connect();
  channel_consumer stays = join(other);
  dies.kill_and_wait();
  std::set<std::uint64_t> used;
  for (int i = 0; i != 3; ++i) {
    auto item = stays.next(60s);
    ASSERT_TRUE(item);
    EXPECT_TRUE(is_whole(*item));
    used.insert(item->number());
    item->release();
  }
  EXPECT_EQ(used, (std::set<std::uint64_t>{1, 2, 3}));
}

TEST_F(work_sharing, never_stops_a_producer_without_consumers) {
  channel_producer producer = create(client_, 2);
  publish(producer, 100);
  const client other = world_.connect();
  channel_consumer consumer = join(other);
  EXPECT_FALSE(consumer.next(0ms)) << "it gets what is published later";
  publish(producer, 2);
  EXPECT_EQ(consumer.next(60s)->number(), 101U);
  consumer.reset();
  ASSERT_TRUE(eventually([&] { return producer.stats().consumers == 0; }, 60s));
  EXPECT_EQ(publish(producer, 100), 202U);
}

class work_sharing_streams : public test_on_gpus {
 protected:
  [[nodiscard]] agent start(int gpu = 0) const {
    agent started = world_->start();
    started.request("device " + std::to_string(gpu));
    return started;
  }
  /// Items that it has taken, from the reply of "take".
  [[nodiscard]] static int taken(const std::string& reply) {
    return std::stoi(reply.substr(reply.rfind(' ') + 1));
  }
};

/// Each consumer finishes with the items of the dead producer, and joins the next one.
TEST_P(work_sharing_streams, goes_on_with_another_producer) {
  agent one = start();
  agent two = start(peer());
  std::optional<agent> producer(start());
  producer->request("produce c 6 65536 0");
  one.request("share c 2 0");
  two.request("share c 2 " + std::to_string(peer()));
  one.send("take 100000 1");
  two.send("take 100000 1");
  int published = 0;
  for (const int count : {100, 50, 150}) {
    producer->request("publish " + std::to_string(count));
    producer->request("sync 0");
    published += count;
    if (count != 150) {
      producer->kill_and_wait();
      producer.emplace(start());
      producer->request("produce c 6 65536 0");
    }
  }
  producer->request("end");
  const std::string first = one.reply();
  const std::string second = two.reply();
  ASSERT_TRUE(first.starts_with("ok ")) << first;
  ASSERT_TRUE(second.starts_with("ok ")) << second;
  EXPECT_EQ(taken(first) + taken(second), published);
}

TEST_P(work_sharing_streams, goes_on_when_a_consumer_dies) {
  agent producer = start();
  producer.request("produce c 8 65536 0");
  agent stays = start();
  agent dies = start();
  stays.request("share c 2 0");
  dies.request("share c 2 0");
  stays.send("take 100000 1");
  dies.send("take 100000 1");
  producer.send("publish 400");
  dies.kill_and_wait();
  EXPECT_EQ(producer.reply(), "ok 400");
  producer.request("end");
  EXPECT_TRUE(stays.reply().starts_with("ok "));
}

INSTANTIATE_TEST_SUITE_P(all,
                         work_sharing_streams,
                         testing::Values(gpus::fake, gpus::real),
                         name_of);

}  // namespace
