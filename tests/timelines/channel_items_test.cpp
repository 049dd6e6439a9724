// SPDX-License-Identifier: Apache-2.0
// Slots and items as objects: used once, on several streams, also when calls fail.
#include <atomic>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/channel/channel_consumer.hpp"
#include "client/channel/channel_producer.hpp"
#include "client/channel/handle_table.hpp"
#include "tests/timelines/timeline_world.hpp"

namespace {

using namespace std::chrono_literals;
using gpushm::channel_consumer;
using gpushm::channel_item;
using gpushm::channel_producer;
using gpushm::channel_slot;
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

// ---- streams ----

/// A producer that uses its CPU, and a consumer with the streams 0 and 1, of which 0 waits for
/// `gate`.
class item_streams : public test_on_gpus {
 protected:
  void SetUp() override {
    test_on_gpus::SetUp();
    if (IsSkipped()) {
      return;
    }
    producer_.emplace(world_->start());
    producer_->request("device 0");
    producer_->request("produce c 2 4096 0");
    consumer_.emplace(world_->start());
    consumer_->request("device 0");
    consumer_->request("streams 1");
    consumer_->request("create gate");
    consumer_->request("consume c 0 0");
  }
  void publish_two() {
    producer_->request("announce 2");
    producer_->request("sync 0");
  }
  void wait_at_gate() { consumer_->request("stream_wait 0 gate 1 0"); }
  void open_gate() {
    consumer_->request("signal gate 1");
    consumer_->request("sync 0");
    consumer_->request("sync 1");
  }
  /// Both slots are free, and the consumer is still a member.
  void expect_all_released() {
    EXPECT_EQ(producer_->request("try_acquire 20000"), "yes");
    EXPECT_EQ(producer_->request("try_acquire 20000"), "yes");
    EXPECT_EQ(producer_->request("stats"), "1 consumers, 0 dropped");
  }

  std::optional<agent> producer_;
  std::optional<agent> consumer_;
};

/// C1 (a): the second item on a busy stream, then the first one on another stream.
TEST_P(item_streams, release_in_another_order_when_each_has_finished) {
  publish_two();
  consumer_->request("next a cpu");
  consumer_->request("next b cpu");
  wait_at_gate();
  consumer_->request("release b 0");
  consumer_->request("release a 1");
  EXPECT_EQ(producer_->request("try_acquire 20000"), "yes") << "the first one is free";
  EXPECT_EQ(producer_->request("try_acquire 50"), "no") << "stream 0 still reads the second one";
  open_gate();
  EXPECT_EQ(producer_->request("try_acquire 20000"), "yes");
  EXPECT_EQ(producer_->request("stats"), "1 consumers, 0 dropped");
}

/// C1 (b): in their order, but the second stream is idle.
TEST_P(item_streams, release_after_what_another_stream_releases) {
  publish_two();
  consumer_->request("next a cpu");
  consumer_->request("next b cpu");
  wait_at_gate();
  consumer_->request("release a 0");
  consumer_->request("release b 1");
  EXPECT_EQ(producer_->request("try_acquire 50"), "no");
  open_gate();
  expect_all_released();
}

/// C1 (c): the second one by the CPU.
TEST_P(item_streams, release_by_the_cpu_after_what_a_stream_releases) {
  publish_two();
  consumer_->request("next a cpu");
  consumer_->request("next b cpu");
  wait_at_gate();
  consumer_->request("release a 0");
  consumer_->request("release b now");
  EXPECT_EQ(producer_->request("try_acquire 50"), "no");
  open_gate();
  expect_all_released();
}

/// C2.
TEST_P(item_streams, release_on_the_stream_that_they_were_taken_for) {
  publish_two();
  wait_at_gate();
  consumer_->request("next a 0");
  consumer_->request("next b 0");
  consumer_->request("release a");
  consumer_->request("release b");
  EXPECT_EQ(producer_->request("try_acquire 50"), "no");
  open_gate();
  expect_all_released();
}

/// The producer's side: items are complete in the order of their numbers.
TEST_P(item_streams, publish_in_their_order_on_several_streams) {
  producer_->request("streams 1");
  producer_->request("create held");
  producer_->request("stream_wait 0 held 1 0");
  producer_->request("slot a 0");
  producer_->request("slot b cpu");
  EXPECT_EQ(producer_->request("publish_slot a"), "1");
  EXPECT_EQ(producer_->request("publish_slot b"), "2");
  EXPECT_EQ(consumer_->request("try_next 50"), "0") << "the first one is not complete";
  producer_->request("signal held 1");
  EXPECT_EQ(consumer_->request("try_next 20000"), "1");
  EXPECT_EQ(consumer_->request("try_next 20000"), "2");
}

INSTANTIATE_TEST_SUITE_P(all, item_streams, testing::Values(gpus::fake, gpus::real), name_of);

bool succeeds(agent& agent, const std::string& order) {
  agent.send(order);
  return agent.reply().starts_with("ok");
}

/// C18, C14: each call of the driver fails once; then the object is as before.
class failing_streams : public testing::TestWithParam<const char*> {};

TEST_P(failing_streams, leave_slots_and_items_as_they_were) {
  const timeline_world world(true);
  agent producer =
      world.start_alone(false, "8", std::string(GetParam()) + ":1=719," + GetParam() + ":3=719");
  producer.request("connect " + world.socket_path());
  producer.request("device 0");
  producer.request("produce c 2 4096 0");
  agent consumer = world.start();
  consumer.request("device 0");
  consumer.request("consume c 0 0");
  std::uint64_t last = 0;
  for (int item = 1; item != 5; ++item) {
    // A call that fails is made again.
    EXPECT_TRUE(eventually([&] { return succeeds(producer, "slot a 0"); }, 20s));
    EXPECT_TRUE(eventually(
        [&] {
          if (!succeeds(producer, "publish_slot a")) {
            EXPECT_EQ(consumer.request("try_next 20"), "0") << "nothing is published";
            return false;
          }
          return true;
        },
        20s));
    producer.request("sync 0");
    EXPECT_EQ(consumer.request("try_next 20000"), std::to_string(++last));
  }
  EXPECT_EQ(producer.request("stats"), "1 consumers, 0 dropped");
}

/// The same of a consumer that takes and releases on a stream.
TEST_P(failing_streams, leave_consumers_as_they_were) {
  const timeline_world world(true);
  agent producer = world.start();
  producer.request("device 0");
  producer.request("produce c 2 4096 0");
  agent consumer =
      world.start_alone(false, "8", std::string(GetParam()) + ":1=719," + GetParam() + ":3=719");
  consumer.request("connect " + world.socket_path());
  consumer.request("device 0");
  consumer.request("consume c 0 0");
  for (int item = 1; item != 5; ++item) {
    producer.request("announce 1");
    EXPECT_TRUE(eventually([&] { return succeeds(consumer, "next a 0"); }, 20s));
    EXPECT_TRUE(eventually([&] { return succeeds(consumer, "release a"); }, 20s));
    consumer.request("sync 0");
  }
  EXPECT_EQ(producer.request("try_acquire 20000"), "yes");
  EXPECT_EQ(producer.request("stats"), "1 consumers, 0 dropped");
}

INSTANTIATE_TEST_SUITE_P(fake,
                         failing_streams,
                         testing::Values("cuStreamWriteValue64_v2",
                                         "cuStreamWaitValue64_v2",
                                         "cuEventCreate",
                                         "cuEventRecord",
                                         "cuStreamGetId"),
                         [](const auto& test) { return std::string(test.param); });

// ---- one process ----

class items : public testing::Test {
 protected:
  void TearDown() override {
    EXPECT_EQ(
        gpushm::client_detail::handle_table<gpushm::client_detail::acquired_slot>::of_process()
            .size(),
        0U);
    EXPECT_EQ(
        gpushm::client_detail::handle_table<gpushm::client_detail::taken_item>::of_process().size(),
        0U);
  }
  [[nodiscard]] channel_producer create(std::uint32_t slots) const {
    return channel_producer::create(
        client_, "c", {.slot_bytes = 4'096, .slots = slots, .device = "host"});
  }
  [[nodiscard]] channel_consumer join(const gpushm::consumer_options& options = {}) const {
    return channel_consumer::open(other_, "c", options);
  }

  timeline_world world_{true};
  client client_ = world_.connect();
  client other_ = world_.connect();
};

/// C6: the C interface, because the classes of C++ forget a handle that was used.
TEST_F(items, are_refused_when_they_were_used) {
  gpushm_client* const connected = client_.handle();
  auto wanted = gpushm::glue::sized<gpushm_channel_options>();
  wanted.slot_bytes = 64;
  wanted.slots = 3;
  wanted.device = gpushm::glue::text("host");
  gpushm_producer* producer = nullptr;
  const auto name = gpushm::glue::text("c");
  ASSERT_EQ(gpushm_producer_create(connected, name, &wanted, &producer), GPUSHM_OK);
  const auto joining = gpushm::glue::sized<gpushm_consumer_options>();
  gpushm_consumer* consumer = nullptr;
  ASSERT_EQ(gpushm_consumer_open(connected, name, &joining, GPUSHM_DEFAULT_TIMEOUT, &consumer),
            GPUSHM_OK);

  gpushm_slot* first = nullptr;
  gpushm_slot* second = nullptr;
  bool acquired = false;
  ASSERT_EQ(gpushm_producer_acquire(producer, 60'000, nullptr, &first, &acquired), GPUSHM_OK);
  ASSERT_EQ(gpushm_slot_publish(first, nullptr, 0, nullptr), GPUSHM_OK);
  ASSERT_EQ(gpushm_producer_acquire(producer, 60'000, nullptr, &second, &acquired), GPUSHM_OK);
  EXPECT_EQ(gpushm_slot_publish(first, nullptr, 0, nullptr), GPUSHM_ERRC_INVALID_ARGUMENT);
  EXPECT_EQ(gpushm_slot_abandon(first), GPUSHM_ERRC_INVALID_ARGUMENT);
  auto info = gpushm::glue::sized<gpushm_slot_info>();
  EXPECT_EQ(gpushm_slot_get(first, &info), GPUSHM_ERRC_INVALID_ARGUMENT);
  EXPECT_EQ(gpushm_slot_get(second, &info), GPUSHM_OK) << "the other slot is not touched";
  EXPECT_TRUE(info.is_free) << "acquired for the CPU";
  EXPECT_EQ(gpushm_slot_wait_on(first, nullptr), GPUSHM_ERRC_INVALID_ARGUMENT);

  gpushm_item* item = nullptr;
  bool got = false;
  ASSERT_EQ(gpushm_consumer_next(consumer, 60'000, nullptr, &item, &got), GPUSHM_OK);
  ASSERT_TRUE(got);
  // The handle of another kind, and one that never was.
  EXPECT_EQ(gpushm_slot_publish(reinterpret_cast<gpushm_slot*>(item), nullptr, 0, nullptr),
            GPUSHM_ERRC_INVALID_ARGUMENT);
  EXPECT_EQ(gpushm_item_release(reinterpret_cast<gpushm_item*>(&info)),
            GPUSHM_ERRC_INVALID_ARGUMENT);
  EXPECT_EQ(gpushm_item_release(nullptr), GPUSHM_ERRC_INVALID_ARGUMENT);
  ASSERT_EQ(gpushm_item_release(item), GPUSHM_OK);
  EXPECT_EQ(gpushm_item_release(item), GPUSHM_ERRC_INVALID_ARGUMENT);

  ASSERT_EQ(gpushm_slot_publish(second, nullptr, 0, nullptr), GPUSHM_OK);
  ASSERT_EQ(gpushm_consumer_next(consumer, 60'000, nullptr, &item, &got), GPUSHM_OK);
  ASSERT_EQ(gpushm_producer_acquire(producer, 60'000, nullptr, &first, &acquired), GPUSHM_OK);
  gpushm_consumer_close(consumer);
  gpushm_producer_close(producer);
  EXPECT_EQ(gpushm_item_release(item), GPUSHM_ERRC_INVALID_ARGUMENT) << "closed";
  EXPECT_EQ(gpushm_slot_publish(first, nullptr, 0, nullptr), GPUSHM_ERRC_INVALID_ARGUMENT);
}

TEST_F(items, are_published_in_the_order_of_the_calls) {
  channel_producer producer = create(4);
  channel_consumer consumer = join();
  std::vector<channel_slot> slots;
  for (int i = 0; i != 3; ++i) {
    slots.push_back(producer.acquire(60s).value());
    std::memset(slots.back().data(), i + 1, slots.back().bytes());
  }
  EXPECT_EQ(slots[2].publish(), 1U);
  slots[0].abandon();
  EXPECT_EQ(slots[1].publish(), 2U);
  for (const int filled : {3, 2}) {
    auto item = consumer.next(60s);
    ASSERT_TRUE(item);
    EXPECT_EQ(*static_cast<const char*>(item->data()), filled);
  }
}

/// N1: who forgets them does not stop the channel.
TEST_F(items, are_given_back_by_their_destructors) {
  channel_producer producer = create(2);
  channel_consumer consumer = join();
  for (std::uint64_t i = 1; i != 10; ++i) {
    static_cast<void>(producer.acquire(60s));  // and forgotten
    auto slot = producer.acquire(60s);
    ASSERT_TRUE(slot);
    EXPECT_EQ(slot->publish(), i);
    const auto item = consumer.next(60s);
    ASSERT_TRUE(item);
    EXPECT_EQ(item->number(), i);
  }
}

/// C11.
TEST_F(items, keep_the_memory_that_they_are_in) {
  std::optional<channel_producer> producer(create(2));
  std::optional<channel_consumer> consumer(join());
  auto slot = producer->acquire(60s);
  ASSERT_TRUE(slot);
  std::memset(slot->data(), 7, slot->bytes());
  slot->publish();
  std::optional<channel_item> item(consumer->next(60s));
  ASSERT_TRUE(item);
  const gpushm::segment memory = item->memory();
  const auto* const bytes = static_cast<const char*>(item->data());
  item.reset();
  consumer.reset();
  producer.reset();
  client_.remove("c");
  EXPECT_EQ(bytes[4'095], 7);
  EXPECT_EQ(memory.size_bytes(), 8'192U);
}

/// C13: each call has its own timeout and stop, also if another one waits.
TEST_F(items, are_waited_for_by_several_threads) {
  const channel_producer producer = create(2);
  channel_consumer consumer = join();
  std::stop_source first_stop;
  std::jthread first(
      [&] { EXPECT_FALSE(consumer.next(std::chrono::hours(1), first_stop.get_token())); });
  EXPECT_FALSE(consumer.next(10ms));
  std::stop_source stop;
  stop.request_stop();
  EXPECT_FALSE(consumer.next(std::chrono::hours(1), stop.get_token()));
  first_stop.request_stop();
}

/// C13: also if the waiting call has no stop of its own.
TEST_F(items, are_not_waited_for_after_a_close) {
  gpushm_client* const connected = client_.handle();
  channel_producer producer = create(1);
  const auto joining = gpushm::glue::sized<gpushm_consumer_options>();
  gpushm_consumer* consumer = nullptr;
  ASSERT_EQ(gpushm_consumer_open(
                connected, gpushm::glue::text("c"), &joining, GPUSHM_DEFAULT_TIMEOUT, &consumer),
            GPUSHM_OK);
  // A call that begins after the close must not read the handle: it has what the handle stands for.
  const auto object = consumer->impl;
  std::atomic<bool> waits{false};
  std::jthread waiting([&] {
    waits = true;
    try {
      EXPECT_FALSE(object->next({}, std::chrono::hours(1), {}));
    } catch (const gpushm::error& why) {
      EXPECT_EQ(why.code(), errc::invalid_argument) << "closed before: " << why.what();
    }
  });
  EXPECT_TRUE(eventually([&] { return waits.load(); }, 20s));
  std::this_thread::sleep_for(20ms);  // it is in the call by now, or finds it closed
  gpushm_consumer_close(consumer);
}

/// C13: also one that has the producer's client.
TEST_F(items, are_not_wanted_by_a_consumer_that_has_left) {
  channel_producer producer = create(1);
  std::optional<channel_consumer> same(
      channel_consumer::open(client_, "c", {.mode = consumer_mode::block}));
  std::optional<channel_consumer> other(join());
  EXPECT_EQ(producer.stats().consumers, 2U);
  same.reset();
  other.reset();
  EXPECT_TRUE(eventually([&] { return producer.stats().consumers == 0; }, 20s));
  producer.acquire(60s).value().publish();
  producer.acquire(60s).value().publish();
}

/// N5.
TEST_F(items, of_a_dead_producer_end_at_once) {
  agent producer = world_.start();
  producer.request("produce c 3 4096 host");
  channel_consumer consumer = join();
  channel_consumer patient = join({.resume = std::chrono::hours(1)});
  producer.request("fill_items 1");
  const auto producer_pid = client_.stat("c/~producer").creator_pid;
  EXPECT_NE(producer_pid, 0);
  producer.kill_and_wait();
  EXPECT_TRUE(consumer.next(60s));
  EXPECT_TRUE(patient.next(60s));
  try {
    static_cast<void>(consumer.next(std::chrono::hours(1)));
    ADD_FAILURE() << "its producer is dead";
  } catch (const gpushm::error& why) {
    EXPECT_EQ(why.code(), errc::peer_died);
    EXPECT_EQ(why.pid(), producer_pid);
  }
  EXPECT_FALSE(patient.next(10ms)) << "it waits for the next producer";
  agent next = world_.start();
  next.request("produce c 3 4096 host");
  next.request("fill_items 1");
  EXPECT_TRUE(consumer.next(60s));
  EXPECT_TRUE(patient.next(60s));
}

/// A producer that has just closed the channel has its name for a moment longer.
TEST_F(items, come_from_one_producer_after_another) {
  for (int i = 0; i != 20; ++i) {
    channel_producer producer = channel_producer::create(
        i % 2 == 0 ? client_ : other_, "c", {.slot_bytes = 64, .slots = 2, .device = "host"});
    producer.acquire(60s).value().publish();
  }
}

}  // namespace
