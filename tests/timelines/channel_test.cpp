// SPDX-License-Identifier: Apache-2.0
// Channels of CPUs, over host memory.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/files/file.hpp"
#include "channel/layout.hpp"
#include "client/channel/join_request.hpp"
#include "protocol/wire/messages.hpp"
#include "sync/timeline_page.hpp"
#include "sync/timeline_page_file.hpp"
#include "sync/timeline_place.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/environment.hpp"
#include "tests/support/process/quiet_fork.hpp"
#include "tests/support/raw_session/raw_session.hpp"
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
using gpushm_tests::timeline_world;

/// The words of an item: all its number.
void fill(const gpushm::channel_slot& slot, std::uint64_t number) {
  auto* const words = static_cast<std::uint64_t*>(slot.data());
  std::fill_n(words, slot.bytes() / sizeof(std::uint64_t), number);
}
bool is_whole(const channel_item& item) {
  const auto* const words = static_cast<const std::uint64_t*>(item.data());
  return std::all_of(words, words + item.bytes() / sizeof(std::uint64_t), [&](std::uint64_t word) {
    return word == item.number();
  });
}
std::span<const std::byte> number_of(const std::uint64_t& number) {
  return std::as_bytes(std::span(&number, 1));
}
bool has_its_metadata(const channel_item& item) {
  std::uint64_t number = 0;
  if (item.metadata().size() != sizeof number) {
    return false;
  }
  std::memcpy(&number, item.metadata().data(), sizeof number);
  return number == item.number();
}

/// What a consumer says about itself: all modes, and impossible ones.
std::vector<std::byte> metadata_of(int attempt, std::uint32_t held, gpushm::generation producer) {
  using gpushm::channel::consumer_mode;
  auto result = gpushm::client_detail::encode({held != 0          ? consumer_mode::latest
                                               : attempt % 2 == 0 ? consumer_mode::block
                                                                  : consumer_mode::share,
                                               2,
                                               producer});
  if (attempt % 4 == 3) {
    result[0] = std::byte{7};
  }
  return result;
}

/// A timeline page that no client library made. Its number is in the reply, with its file.
auto reserve_page(gpushm_testing::raw_session& session, const std::string& name) {
  gpushm::wire::reserve page;
  page.name = name;
  page.size_bytes = page.allocated_bytes = gpushm::sync::timeline_page_bytes;
  page.chunk_count = 1;
  page.backend = gpushm::backend::signals;
  auto reply = session.request(page);
  gpushm::sync::fill_timeline_page(reply.descriptors.at(0).get(), page.allocated_bytes);
  return reply;
}

/// The claim of a consumer whose words are the first ones of that page.
void publish_claim(gpushm_testing::raw_session& session,
                   const std::string& name,
                   const std::string& page,
                   gpushm::generation generation,
                   std::uint32_t held,
                   std::vector<std::byte> metadata) {
  gpushm::wire::reserve claim;
  claim.name = name;
  claim.size_bytes = claim.allocated_bytes = 8;
  claim.backend = gpushm::backend::timeline;
  claim.ticket =
      gpushm::sync::encode({page, generation, 0, gpushm::channel::first_held_timeline + held});
  const auto reply = session.request(claim);
  static_cast<void>(session.request(gpushm::wire::publish{
      gpushm_testing::body_of<gpushm::wire::reserved>(reply)->generation, std::move(metadata)}));
}

class channels : public testing::Test {
 protected:
  [[nodiscard]] static channel_producer create(const client& client,
                                               std::uint32_t slots,
                                               std::uint64_t bytes = 4'096) {
    return channel_producer::create(
        client, "c", {.slot_bytes = bytes, .slots = slots, .device = "host"});
  }
  /// After a producer of another client: its broker may meet the end of that one later.
  [[nodiscard]] static channel_producer create_next(const client& client, std::uint32_t slots) {
    channel_producer result;
    EXPECT_TRUE(eventually(
        [&] {
          try {
            result = create(client, slots);
            return true;
          } catch (const gpushm::error& why) {
            if (why.code() != errc::already_exists) {
              throw;
            }
            return false;
          }
        },
        20s));
    return result;
  }
  static void publish_one(channel_producer& producer) {
    auto slot = producer.acquire(60s);
    ASSERT_TRUE(slot);
    const std::uint64_t number = producer.stats().announced + 1;
    fill(*slot, number);
    EXPECT_EQ(slot->publish(number_of(number)), number);
  }

  timeline_world world_{true};
  client client_ = world_.connect();
};

TEST_F(channels, bring_each_item_to_each_consumer) {
  channel_producer producer = create(client_, 4);
  constexpr std::uint64_t items = 2'000;
  std::vector<client> clients;
  std::vector<channel_consumer> consumers;
  for (int i = 0; i != 3; ++i) {
    clients.push_back(world_.connect());
    consumers.push_back(channel_consumer::open(clients.back(), "c"));
  }
  std::vector<std::jthread> readers;
  std::atomic<int> finished{0};
  for (channel_consumer& each : consumers) {
    readers.emplace_back([&] {
      std::uint64_t expected = 1;
      while (auto item = each.next(60s)) {
        ASSERT_EQ(item->number(), expected++);
        ASSERT_TRUE(is_whole(*item) && has_its_metadata(*item));
        item->release();
      }
      EXPECT_TRUE(each.has_ended());
      EXPECT_EQ(expected, items + 1);
      ++finished;
    });
  }
  EXPECT_EQ(producer.stats().consumers, 3U);
  for (std::uint64_t i = 1; i <= items; ++i) {
    publish_one(producer);
  }
  EXPECT_EQ(producer.stats().published, items);
  producer.reset();
  readers.clear();
  EXPECT_EQ(finished, 3);
}

TEST_F(channels, lose_nothing_when_a_producer_ends_as_soon_as_it_has_consumers) {
  const client other = world_.connect();
  for (int round = 0; round != 200; ++round) {
    std::jthread reader([&] {
      channel_consumer consumer = channel_consumer::open(other, "c", {.timeout = 60s});
      std::uint64_t before = 0;
      for (int i = 0; i != 2; ++i) {
        auto item = consumer.next(60s);
        ASSERT_TRUE(item);
        // Numbers go on if the page of the previous producer is still there.
        EXPECT_EQ(item->number(), before == 0 ? item->number() : before + 1);
        before = item->number();
        EXPECT_TRUE(is_whole(*item));
        item->release();
      }
      EXPECT_FALSE(consumer.next(60s));
      EXPECT_TRUE(consumer.has_ended());
    });
    const client short_lived = world_.connect();
    channel_producer producer = create_next(short_lived, 2);
    ASSERT_TRUE(eventually([&] { return producer.stats().consumers == 1; }, 60s));
    publish_one(producer);
    publish_one(producer);
  }
}

/// A consumer that has asked one producer to admit it is not admitted by the next one, whose slots
/// it does not have yet.
TEST_F(channels, lose_nothing_between_two_producers) {
  const client other = world_.connect();
  std::mt19937 random(11);
  for (int round = 0; round != 100; ++round) {
    std::jthread reader([&] {
      std::uint64_t got = 0;
      while (got != 2) {
        channel_consumer consumer = channel_consumer::open(other, "c", {.timeout = 60s});
        while (auto item = consumer.next(60s)) {
          EXPECT_TRUE(is_whole(*item));
          item->release();
          ++got;
        }
        ASSERT_TRUE(consumer.has_ended());
        ASSERT_LE(got, 2U);
      }
    });
    {
      const client short_lived = world_.connect();
      channel_producer first = create_next(short_lived, 2);
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 3'000));
    }
    const client short_lived = world_.connect();
    channel_producer producer = create_next(short_lived, 2);
    ASSERT_TRUE(eventually([&] { return producer.stats().consumers == 1; }, 60s));
    publish_one(producer);
    publish_one(producer);
  }
}

TEST_F(channels, have_one_slot) {
  channel_producer producer = create(client_, 1);
  const client other = world_.connect();
  channel_consumer consumer = channel_consumer::open(other, "c");
  EXPECT_EQ(
      failure_of([&] {
        static_cast<void>(channel_consumer::open(other, "c", {.mode = consumer_mode::latest}));
      }),
      errc::quota_exceeded);
  for (std::uint64_t i = 1; i <= 100; ++i) {
    publish_one(producer);
    EXPECT_FALSE(producer.acquire(0ms)) << "it is not released";
    auto item = consumer.next(60s);
    ASSERT_TRUE(item);
    EXPECT_EQ(item->number(), i);
    EXPECT_TRUE(is_whole(*item));
    item->release();
  }
}

TEST_F(channels, give_the_newest_and_count_the_others) {
  channel_producer producer = create(client_, 4);
  const client other = world_.connect();
  channel_consumer consumer =
      channel_consumer::open(other, "c", {.mode = consumer_mode::latest, .held = 2});
  EXPECT_FALSE(consumer.next(10ms));
  for (int i = 0; i != 10; ++i) {
    publish_one(producer);
  }
  auto tenth = consumer.next(60s);
  ASSERT_TRUE(tenth);
  EXPECT_EQ(tenth->number(), 10U);
  EXPECT_EQ(tenth->skipped(), 9U);
  publish_one(producer);
  auto eleventh = consumer.next(60s);
  ASSERT_TRUE(eleventh);
  EXPECT_EQ(eleventh->skipped(), 0U);
  for (int i = 0; i != 20; ++i) {
    publish_one(producer);  // it does not wait for those
  }
  EXPECT_EQ(failure_of([&] { static_cast<void>(consumer.next(60s)); }), errc::too_many_requests);
  EXPECT_TRUE(is_whole(*tenth) && is_whole(*eleventh)) << "they are held";
  tenth->release();
  auto last = consumer.next(60s);
  ASSERT_TRUE(last);
  EXPECT_EQ(last->number(), 31U);
  EXPECT_TRUE(is_whole(*last) && has_its_metadata(*last));
  last->release();
  eleventh->release();
  EXPECT_EQ(failure_of([&] { last->release(); }), errc::invalid_argument);
}

TEST_F(channels, admit_late_consumers_at_the_newest_item) {
  channel_producer producer = create(client_, 3);
  for (int i = 0; i != 7; ++i) {
    publish_one(producer);
  }
  const client other = world_.connect();
  channel_consumer consumer = channel_consumer::open(other, "c");
  auto item = consumer.next(60s);
  ASSERT_TRUE(item);
  EXPECT_EQ(item->number(), 7U);
  EXPECT_TRUE(is_whole(*item));
  item->release();
}

TEST_F(channels, release_in_any_order) {
  channel_producer producer = create(client_, 3);
  const client other = world_.connect();
  channel_consumer consumer = channel_consumer::open(other, "c");
  std::vector<channel_item> held;
  for (int i = 0; i != 3; ++i) {
    publish_one(producer);
    held.push_back(consumer.next(60s).value());
  }
  held[2].release();
  held[1].release();
  EXPECT_FALSE(producer.acquire(20ms));
  held[0].release();
  producer.acquire(60s).value().abandon();
  publish_one(producer);
  auto item = consumer.next(60s);
  ASSERT_TRUE(item);
  EXPECT_EQ(item->number(), 4U) << "the number of an abandoned slot is used again";
  EXPECT_TRUE(is_whole(*item));
}

TEST_F(channels, refuse_a_second_producer) {
  const channel_producer producer = create(client_, 2);
  const client other = world_.connect();
  EXPECT_EQ(failure_of([&] { static_cast<void>(create(other, 2)); }), errc::already_exists);
  EXPECT_EQ(failure_of([&] { static_cast<void>(create(client_, 2)); }), errc::already_exists);
}

TEST_F(channels, refuse_invalid_arguments) {
  const auto make = [&](std::string name, gpushm::channel_options options) {
    return failure_of([&] { static_cast<void>(channel_producer::create(client_, name, options)); });
  };
  EXPECT_EQ(make("x", {.slot_bytes = 0, .slots = 2}), errc::invalid_argument);
  EXPECT_EQ(make("x", {.slot_bytes = 1, .slots = 0}), errc::invalid_argument);
  EXPECT_EQ(make("x", {.slot_bytes = 1, .slots = 1'025}), errc::invalid_argument);
  EXPECT_EQ(make("x", {.slot_bytes = UINT64_MAX, .slots = 2}), errc::invalid_argument);
  EXPECT_EQ(make(std::string(201, 'x'), {.slot_bytes = 1, .slots = 2}), errc::invalid_argument);
  EXPECT_EQ(make("", {.slot_bytes = 1, .slots = 2}), errc::invalid_argument);
  EXPECT_EQ(failure_of([&] {
              static_cast<void>(channel_consumer::open(client_, "none", {.timeout = 10ms}));
            }),
            errc::no_such_segment);
  channel_producer none;
  EXPECT_EQ(failure_of([&] { static_cast<void>(none.acquire(0ms)); }), errc::invalid_argument);
  channel_consumer empty;
  EXPECT_EQ(failure_of([&] { static_cast<void>(empty.next(0ms)); }), errc::invalid_argument);
  channel_producer producer = create(client_, 2);
  gpushm::channel_slot unused;
  EXPECT_EQ(failure_of([&] { unused.publish(); }), errc::invalid_argument);
  auto slot = producer.acquire(60s);
  ASSERT_TRUE(slot);
  const std::vector<std::byte> much(257);
  EXPECT_EQ(failure_of([&] { slot->publish(much); }), errc::message_too_large);
  slot->publish(std::span(much).first(256));
  EXPECT_EQ(failure_of([&] { slot->publish(); }), errc::invalid_argument);
  channel_item nothing;
  EXPECT_EQ(failure_of([&] { nothing.release(); }), errc::invalid_argument);
  EXPECT_EQ(
      failure_of([&] { static_cast<void>(channel_consumer::open(client_, "c", {.held = 1})); }),
      errc::invalid_argument);
}

TEST_F(channels, leave_no_name_when_they_end) {
  for (int i = 0; i != 20; ++i) {
    channel_producer producer = create(client_, 2);
    const client other = world_.connect();
    channel_consumer consumer = channel_consumer::open(other, "c");
    publish_one(producer);
    ASSERT_TRUE(consumer.next(60s));
  }
  client users = world_.connect();
  EXPECT_TRUE(eventually([&] { return users.list("c").empty(); }, 10s));
}

/// As sinks of media frameworks do. A new producer needs other slots only.
TEST_F(channels, go_on_when_a_consumer_keeps_its_last_item) {
  for (int slots = 2; slots != 5; ++slots) {
    const std::string create =
        "produce c" + std::to_string(slots) + " " + std::to_string(slots) + " 4096 host";
    std::optional<agent> producer(world_.start());
    producer->request(create);
    channel_consumer consumer =
        channel_consumer::open(client_, "c" + std::to_string(slots), {.resume = 60s});
    std::optional<channel_item> kept;
    const auto replace_producer = [&](bool while_it_writes) {
      if (while_it_writes) {
        producer->request("start_item");
      }
      producer->kill_and_wait();
      EXPECT_TRUE(!kept || is_whole(*kept));
      producer.emplace(world_.start());
      producer->request(create);
    };
    for (int deaths = 0; deaths != 6; ++deaths) {
      for (int i = 0; i != slots + deaths; ++i) {
        producer->request("fill_items 1");
        auto item = consumer.next(60s);
        ASSERT_TRUE(item);
        EXPECT_TRUE(is_whole(*item) && has_its_metadata(*item));
        if (kept) {
          EXPECT_TRUE(is_whole(*kept)) << "item " << kept->number();
          kept->release();
        }
        kept = std::move(item);
      }
      replace_producer(deaths % 2 != 0);
      if (deaths >= 3) {
        replace_producer(true);  // it has published nothing
      }
    }
  }
}

/// The slots of a channel whose producer has died were removed: the next one has others.
TEST_F(channels, keep_the_memory_of_items_when_a_new_producer_has_other_slots) {
  agent producer = world_.start();
  producer.request("produce c 3 4096 host");
  channel_consumer consumer = channel_consumer::open(client_, "c", {.resume = 60s});
  channel_consumer newest = channel_consumer::open(
      client_, "c", {.mode = consumer_mode::latest, .held = 1, .resume = 60s});
  producer.request("fill_items 3");
  std::vector<channel_item> held;
  for (int i = 0; i != 3; ++i) {
    held.push_back(consumer.next(60s).value());
  }
  held[0].release();
  held.push_back(newest.next(60s).value());
  producer.kill_and_wait();
  client_.remove("c");
  agent next = world_.start();
  next.request("produce c 3 4096 host");
  next.request("fill_items 1");
  held[3].release();
  for (channel_consumer* const each : {&consumer, &newest}) {
    auto item = each->next(60s);
    ASSERT_TRUE(item);
    EXPECT_EQ(item->number(), 4U) << "numbers are never used again";
    EXPECT_TRUE(is_whole(*item));
    EXPECT_TRUE(is_whole(held[1]) && is_whole(held[2]));
    item->release();
  }
  held[1].release();
  held[2].release();
  next.request("fill_items 3");
  EXPECT_EQ(consumer.next(60s)->number(), 5U);
}

/// Also if there is a next producer by then: it has other slots.
TEST_F(channels, give_the_newest_item_after_a_normal_end) {
  const client other = world_.connect();
  for (const bool has_successor : {false, true}) {
    for (const std::uint32_t held : {1U, 2U}) {
      channel_producer producer = create(client_, 4);
      channel_consumer newest =
          channel_consumer::open(other, "c", {.mode = consumer_mode::latest, .held = held});
      channel_consumer idle = channel_consumer::open(other, "c");
      publish_one(producer);
      auto first = newest.next(60s);
      ASSERT_TRUE(first);
      publish_one(producer);
      publish_one(producer);
      producer.reset();
      if (has_successor) {
        producer = create(client_, 4);
        for (int i = 0; i != 10; ++i) {
          publish_one(producer);  // nobody is waited for
        }
      }
      EXPECT_TRUE(is_whole(*first));
      first->release();
      auto last = newest.next(60s);
      ASSERT_TRUE(last);
      EXPECT_EQ(last->number(), first->number() + 2);
      EXPECT_EQ(last->skipped(), 1U);
      EXPECT_TRUE(is_whole(*last) && has_its_metadata(*last));
      EXPECT_FALSE(newest.has_ended());
      EXPECT_FALSE(newest.next(60s));
      EXPECT_TRUE(newest.has_ended());
      if (has_successor) {
        // Those who join now are members of the next one.
        channel_consumer joined = channel_consumer::open(other, "c");
        EXPECT_EQ(joined.next(60s)->number(), first->number() + 12);
      }
      for (std::uint64_t number = first->number(); number != first->number() + 3; ++number) {
        auto item = idle.next(60s);
        ASSERT_TRUE(item);
        EXPECT_TRUE(item->number() == number && is_whole(*item));
        item->release();
      }
      EXPECT_TRUE(is_whole(*last));
      EXPECT_FALSE(idle.next(60s));
      EXPECT_TRUE(idle.has_ended());
    }
  }
}

/// As above, when the process of the producer has gone, and others have come and gone.
TEST_F(channels, give_the_newest_item_of_a_process_that_has_gone) {
  const std::string create = "produce c 3 4096 host";
  channel_consumer newest;
  channel_consumer other_mode;
  {
    agent producer = world_.start();
    producer.request(create);
    newest = channel_consumer::open(client_, "c", {.mode = consumer_mode::latest, .resume = 60s});
    other_mode = channel_consumer::open(client_, "c", {.resume = 60s});
    producer.request("fill_items 3");
    producer.request("end");
    producer.kill_and_wait();
  }
  for (int i = 0; i != 3; ++i) {
    agent next = world_.start();
    next.request(create);
    channel_consumer member = channel_consumer::open(client_, "c", {.resume = 60s});
    next.request("fill_items 3");
    EXPECT_TRUE(member.next(60s));
    if (i % 2 == 0) {
      next.request("end");
    }
    next.kill_and_wait();
  }
  auto item = newest.next(60s);
  ASSERT_TRUE(item);
  EXPECT_EQ(item->number(), 3U);
  EXPECT_TRUE(is_whole(*item) && has_its_metadata(*item));
  EXPECT_FALSE(newest.next(60s));
  for (std::uint64_t number = 1; number != 4; ++number) {
    auto each = other_mode.next(60s);
    ASSERT_TRUE(each);
    EXPECT_TRUE(each->number() == number && is_whole(*each));
    each->release();
  }
  EXPECT_FALSE(other_mode.next(60s));
}

/// What a dead producer has published last is not taken by consumers of the newest.
TEST_F(channels, give_no_newest_item_of_a_dead_producer) {
  agent producer = world_.start();
  producer.request("produce c 3 4096 host");
  channel_consumer newest =
      channel_consumer::open(client_, "c", {.mode = consumer_mode::latest, .held = 1});
  producer.request("fill_items 2");
  producer.kill_and_wait();
  ASSERT_TRUE(
      eventually([&] { return !gpushm::channel_status::read(client_, "c").has_producer; }, 60s));
  std::this_thread::sleep_for(200ms);  // the fence
  EXPECT_EQ(failure_of([&] { static_cast<void>(newest.next(10ms)); }), errc::peer_died);
}

/// Members of a dead producer get what the next one has published, also if that one has gone.
TEST_F(channels, bring_members_all_items_of_a_producer_that_closes_at_once) {
  for (const auto mode : {consumer_mode::block, consumer_mode::latest}) {
    for (const bool waits : {false, true}) {
      const bool is_block = mode == consumer_mode::block;
      const std::string name = std::string(waits ? "waits" : "idle") + (is_block ? "1" : "2");
      const std::string create = "produce " + name + " 3 4096 host";
      std::optional<agent> producer(world_.start());
      producer->request(create);
      channel_consumer member =
          channel_consumer::open(client_, name, {.mode = mode, .resume = 60s});
      producer->request("fill_items 1");
      member.next(60s).value().release();  // it has all items of this one
      producer->kill_and_wait();
      std::vector<std::uint64_t> numbers;
      const auto read_rest = [&] {
        while (auto item = member.next(60s)) {
          EXPECT_TRUE(is_whole(*item));
          numbers.push_back(item->number());
          item->release();
        }
        EXPECT_TRUE(member.has_ended());
      };
      std::vector<std::jthread> readers;
      if (waits) {
        readers.emplace_back(read_rest);
      }
      producer.emplace(world_.start());
      producer->request(create);
      producer->request("fill_items 3");
      producer->request("end");
      if (waits) {
        producer->kill_and_wait();
        readers.clear();
      } else {
        // The name is free, and another one comes.
        agent next = world_.start();
        next.request(create);
        next.request("fill_items 2");
        read_rest();
        channel_consumer joined = channel_consumer::open(client_, name, {.resume = 60s});
        EXPECT_EQ(joined.next(60s)->number(), 6U);
      }
      ASSERT_FALSE(numbers.empty());
      EXPECT_EQ(numbers.back(), 4U);
      EXPECT_TRUE(!is_block || numbers == (std::vector<std::uint64_t>{2, 3, 4}));
    }
  }
}

/// Numbers that a dead producer has announced and not completed are not lost silently.
TEST_F(channels, count_what_a_dead_producer_has_not_completed) {
  agent producer = world_.start();
  producer.request("device 0");
  producer.request("create gate");
  producer.request("produce c 4 4096 host");
  std::vector<channel_consumer> consumers;
  for (const consumer_mode mode : {consumer_mode::block, consumer_mode::latest}) {
    consumers.push_back(channel_consumer::open(
        client_,
        "c",
        {.mode = mode, .held = mode == consumer_mode::latest ? 1U : 0U, .resume = 60s}));
  }
  producer.request("fill_items 2");
  for (channel_consumer& each : consumers) {
    std::uint64_t last = 0;
    while (last != 2) {
      auto item = each.next(60s);
      ASSERT_TRUE(item);
      EXPECT_EQ(item->skipped(), item->number() - last - 1);
      last = item->number();
      item->release();
    }
  }
  producer.request("stream_wait 0 gate 1");
  producer.request("announce 2");
  EXPECT_FALSE(consumers[0].next(10ms)) << "announced only";
  producer.kill_and_wait();
  agent next = world_.start();
  next.request("produce c 4 4096 host");
  next.request("fill_items 1");
  for (channel_consumer& each : consumers) {
    auto item = each.next(60s);
    ASSERT_TRUE(item);
    EXPECT_EQ(item->number(), 5U);
    EXPECT_EQ(item->skipped(), 2U);
    EXPECT_TRUE(is_whole(*item));
    item->release();
  }
}

/// A stop is reported as a timeout is: by calls with a bool, or nothing, as a result.
TEST_F(channels, stop_waiting) {
  channel_producer producer = create(client_, 1);
  channel_consumer consumer = channel_consumer::open(client_, "c");
  std::stop_source stop;
  std::vector<std::jthread> waiting;
  std::atomic<int> stopped{0};
  waiting.emplace_back([&] { stopped += consumer.next(60s, stop.get_token()) ? 0 : 1; });
  std::this_thread::sleep_for(20ms);
  stop.request_stop();
  waiting.clear();
  EXPECT_EQ(stopped, 1);
  publish_one(producer);
  EXPECT_FALSE(producer.acquire(60s, stop.get_token()));
  EXPECT_EQ(
      failure_of([&] {
        static_cast<void>(channel_consumer::open(client_, "none", {.stop = stop.get_token()}));
      }),
      errc::cancelled);
}

/// A page of a producer whose words do not end, as behind a fence that takes long.
TEST_F(channels, stop_waiting_for_the_end_of_a_dead_producer) {
  namespace wire = gpushm::wire;
  auto session = gpushm_testing::raw_session::greeted(world_.socket_path());
  wire::reserve page;
  page.name = "c/~page-raw";
  page.size_bytes = page.allocated_bytes = gpushm::channel::page_bytes(2);
  page.chunk_count = 1;
  page.backend = gpushm::backend::signals;
  auto reply = session.request(page);
  auto mapped =
      gpushm::base::map_file("test", reply.descriptors.at(0).get(), page.size_bytes, true);
  auto* const table =
      static_cast<std::byte*>(mapped.get().address) + gpushm::sync::timeline_page_bytes;
  auto& head = *reinterpret_cast<gpushm::channel::table_head*>(table);
  head.version = gpushm::channel::table_version;
  head.slots = 2;
  head.slot_bytes = head.slot_stride = 4'096;
  head.first_item = 1;
  head.magic = gpushm::channel::table_magic;
  static_cast<void>(session.request(
      wire::publish{gpushm_testing::body_of<wire::reserved>(reply)->generation, {}}));
  std::stop_source stop;
  const std::jthread stopper([&] {
    std::this_thread::sleep_for(50ms);
    stop.request_stop();
  });
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(failure_of([&] {
              static_cast<void>(channel_producer::create(
                  client_,
                  "c",
                  {.slot_bytes = 4'096, .slots = 2, .device = "host", .stop = stop.get_token()}));
            }),
            errc::cancelled);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, gpushm_testing::wait_limit(5s));
}

/// Users know the channel only, not the segments that it is made of.
TEST_F(channels, name_the_channel_in_errors) {
  const auto text_of = [](auto&& call) -> std::string {
    try {
      call();
    } catch (const gpushm::error& why) {
      return why.what();
    }
    return "no error";
  };
  const channel_producer producer = create(client_, 2);
  const client other = world_.connect();
  EXPECT_EQ(text_of([&] { static_cast<void>(create(other, 2)); }),
            "create \"c\": the channel has a producer (stop that one first: gpushm channel stat "
            "shows its process)");
  EXPECT_EQ(
      text_of([&] { static_cast<void>(channel_consumer::open(other, "cc", {.timeout = 10ms})); }),
      "open \"cc\": the channel has no producer (start its producer, or wait longer for it "
      "(gpushm ls shows which channels there are))");
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(text_of([&] {
              static_cast<void>(channel_consumer::open(other, "cc", {.stop = stop.get_token()}));
            }),
            "open \"cc\": the stop token of this wait was requested to stop (call again with "
            "another token)");
  // What is not expected, too.
  gpushm::segment other_kind =
      client_.create("d/~producer", {.size_bytes = 4'096, .device = "host"});
  other_kind.publish();
  for (const std::string& text :
       {text_of([&] { static_cast<void>(channel_consumer::open(other, "d", {.timeout = 10ms})); }),
        text_of([&] {
          static_cast<void>(channel_producer::create(
              other, "d", {.slot_bytes = 1, .slots = 1, .device = "host"}));
        })}) {
    EXPECT_THAT(text, testing::HasSubstr("\"d\""));
    EXPECT_THAT(text, testing::Not(testing::HasSubstr("~")));
  }
}

/// A forked child can neither use them nor, by destroying them, end them.
TEST_F(channels, and_timelines_belong_to_the_process_that_made_them) {
  std::optional<gpushm::timeline> mine(gpushm::timeline::create(client_, "t"));
  std::optional<channel_producer> producer(create(client_, 2));
  const client other = world_.connect();
  std::optional<channel_consumer> consumer(channel_consumer::open(other, "c"));
  publish_one(*producer);
  std::optional<gpushm::channel_slot> slot = producer->acquire(60s);
  std::optional<channel_item> item = consumer->next(60s);
  ASSERT_TRUE(slot && item);
  const pid_t child = gpushm_testing::quiet_fork();
  if (child == 0) {
    const bool is_refused =
        failure_of([&] { mine->signal(1); }) == errc::forked &&
        failure_of([&] { static_cast<void>(mine->value()); }) == errc::forked &&
        failure_of([&] { static_cast<void>(mine->wait(1, 0ms)); }) == errc::forked &&
        failure_of([&] { static_cast<void>(producer->acquire(0ms)); }) == errc::forked &&
        failure_of([&] { slot->publish(); }) == errc::forked &&
        failure_of([&] { item->release(); }) == errc::forked &&
        failure_of([&] { static_cast<void>(item->memory()); }) == errc::forked &&
        failure_of([&] { static_cast<void>(consumer->next(0ms)); }) == errc::forked &&
        failure_of([&] { consumer->check(); }) == errc::forked &&
        failure_of([&] { static_cast<void>(gpushm::timeline::open(other, "t")); }) == errc::forked;
    mine.reset();
    slot.reset();
    item.reset();
    producer.reset();
    consumer.reset();
    ::_exit(is_refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  mine->signal(1);
  EXPECT_TRUE(is_whole(*item));
  item->release();
  slot->publish();
  publish_one(*producer);
}

/// Every word of every item is compared. `make test-long` sets a million.
TEST_F(channels, bring_each_of_many_items) {
  channel_producer producer = create(client_, 64, 64);
  const client other = world_.connect();
  channel_consumer consumer = channel_consumer::open(other, "c");
  const auto items =
      gpushm_testing::number_from_environment<std::uint64_t>("GPUSHM_CHANNEL_ITEMS", 200'000);
  std::jthread reader([&] {
    std::uint64_t expected = 1;
    while (auto item = consumer.next(60s)) {
      ASSERT_TRUE(item->number() == expected++ && is_whole(*item) && has_its_metadata(*item));
      item->release();
    }
    EXPECT_EQ(expected, items + 1);
  });
  for (std::uint64_t i = 1; i <= items; ++i) {
    publish_one(producer);
  }
  producer.reset();
}

TEST_F(channels, bring_frames) {
  constexpr std::uint64_t frame_bytes = 3'840ULL * 2'160 * 3 / 2;  // NV12
  channel_producer producer = create(client_, 3, frame_bytes);
  const client other = world_.connect();
  channel_consumer consumer = channel_consumer::open(other, "c");
  const auto items =
      gpushm_testing::number_from_environment<std::uint64_t>("GPUSHM_CHANNEL_FRAMES", 500);
  std::jthread reader([&] {
    std::uint64_t expected = 1;
    while (auto item = consumer.next(60s)) {
      const auto* const words = static_cast<const std::uint64_t*>(item->data());
      const std::vector<std::uint64_t> wanted(8'192, item->number());
      for (std::uint64_t at = 0; at < item->bytes(); at += wanted.size() * 8) {
        const std::size_t bytes = std::min<std::size_t>(wanted.size() * 8, item->bytes() - at);
        ASSERT_EQ(std::memcmp(words + at / 8, wanted.data(), bytes), 0);
      }
      ASSERT_EQ(item->number(), expected++);
      item->release();
    }
    EXPECT_EQ(expected, items + 1);
  });
  for (std::uint64_t i = 1; i <= items; ++i) {
    publish_one(producer);
  }
  producer.reset();
}

/// The claim of a consumer that has just given up a producer that ended before it could admit it:
/// the page of that one is gone, and the claim goes next.
TEST_F(channels, do_not_admit_a_claim_for_a_producer_that_has_gone) {
  namespace wire = gpushm::wire;
  std::uint64_t gone = 0;
  {
    const client short_lived = world_.connect();
    channel_producer before = create(short_lived, 4);
    gone = client_.list("c/~page-").front().generation;
  }
  ASSERT_TRUE(eventually([&] { return client_.list("c/~page-").empty(); }, 20s));
  auto session = gpushm_testing::raw_session::greeted(world_.socket_path());
  const auto page = reserve_page(session, "page");
  const auto generation = gpushm_testing::body_of<wire::reserved>(page)->generation;
  static_cast<void>(session.request(wire::publish{generation, {}}));
  publish_claim(session, "c/~consumer-0", "page", generation, 0, metadata_of(0, 0, gone));
  channel_producer producer = create(client_, 4);
  // Admitted after it: claims are looked at in the order of their names and of their publication.
  const client other = world_.connect();
  channel_consumer honest = channel_consumer::open(other, "c");
  EXPECT_EQ(producer.stats().consumers, 1U);
  EXPECT_EQ(producer.stats().dropped, 0U);
}

/// The claim of a consumer that has been admitted, but has not seen it before the producer has
/// closed the channel: it ends with that producer.
TEST_F(channels, do_not_admit_a_claim_that_a_closed_producer_has_admitted) {
  namespace wire = gpushm::wire;
  const client short_lived = world_.connect();
  channel_producer before = create(short_lived, 4);
  const std::uint64_t closed = client_.list("c/~page-").front().generation;
  const client other = world_.connect();
  const channel_consumer keeps_the_page = channel_consumer::open(other, "c");
  auto session = gpushm_testing::raw_session::greeted(world_.socket_path());
  const auto page = reserve_page(session, "page");
  const auto generation = gpushm_testing::body_of<wire::reserved>(page)->generation;
  static_cast<void>(session.request(wire::publish{generation, {}}));
  publish_claim(session, "c/~consumer-0", "page", generation, 0, metadata_of(0, 0, closed));
  ASSERT_TRUE(eventually([&] { return before.stats().consumers == 2; }, 20s));
  before.reset();
  for (int round = 0; round != 2; ++round) {  // also not the one after the next one
    channel_producer producer = create(client_, 4);
    const channel_consumer honest = channel_consumer::open(other, "c");
    EXPECT_EQ(producer.stats().consumers, 1U);
    EXPECT_EQ(producer.stats().dropped, 0U);
  }
}

/// A member that writes random numbers into its words harms nobody: it is dropped.
TEST_F(channels, drop_a_consumer_with_impossible_words) {
  namespace sync = gpushm::sync;
  namespace wire = gpushm::wire;
  channel_producer producer = create(client_, 4);
  const client other = world_.connect();
  channel_consumer honest = channel_consumer::open(other, "c");
  std::jthread reader([&] {
    std::uint64_t expected = 1;
    while (auto item = honest.next(60s)) {
      ASSERT_TRUE(item->number() == expected++ && is_whole(*item));
      item->release();
    }
  });
  const auto page_of_producer = client_.list("c/~page-").front().generation;
  for (int attempt = 0; attempt != 20; ++attempt) {
    auto session = gpushm_testing::raw_session::greeted(world_.socket_path());
    const std::string page = "page" + std::to_string(attempt);
    const auto reply = reserve_page(session, page);
    const auto generation = gpushm_testing::body_of<wire::reserved>(reply)->generation;
    auto mapped = gpushm::base::map_file(
        "test", reply.descriptors.at(0).get(), sync::timeline_page_bytes, true);
    auto& words = *static_cast<sync::timeline_page*>(mapped.get().address);
    static_cast<void>(session.request(wire::publish{generation, {}}));
    const auto held = static_cast<std::uint32_t>(attempt % 3);
    publish_claim(session,
                  "c/~consumer-" + std::to_string(attempt),
                  page,
                  generation,
                  held,
                  metadata_of(attempt, held, page_of_producer));
    // All the time: words that stay as an honest consumer's could be make the producer wait.
    const std::jthread writer([&](const std::stop_token& stop) {
      std::mt19937_64 random(static_cast<std::uint64_t>(attempt));
      while (!stop.stop_requested()) {
        for (std::uint32_t word = 0; word != gpushm::channel::first_held_timeline + held; ++word) {
          words.words[word].store(random() >> (random() % 64U));
        }
      }
    });
    for (int i = 0; i != 300; ++i) {
      publish_one(producer);
    }
  }
  EXPECT_GE(producer.stats().dropped, 5U);
  producer.reset();
}

/// Consumers of all kinds that join, are slow, and leave, at random.
TEST_F(channels, keep_their_promises_under_load) {
  channel_producer producer = create(client_, 8, 1'024);
  std::atomic<bool> done{false};
  std::vector<std::jthread> readers;
  std::atomic<std::uint64_t> got{0};
  for (unsigned seed = 0; seed != 6; ++seed) {
    readers.emplace_back([&, seed] {
      std::mt19937 random(seed);
      const client own = world_.connect();
      while (!done) {
        const auto mode = static_cast<consumer_mode>(random() % 3);
        channel_consumer consumer;
        try {
          consumer = channel_consumer::open(own, "c", {.mode = mode, .timeout = 60s});
        } catch (const gpushm::error& why) {
          ASSERT_TRUE(done || why.code() == errc::quota_exceeded) << why.what();
          continue;
        }
        std::uint64_t last = 0;
        for (auto i = random() % 200; i != 0 && !done; --i) {
          auto item = consumer.next(10ms);
          if (!item) {
            continue;
          }
          ++got;
          ASSERT_TRUE(is_whole(*item) && has_its_metadata(*item));
          ASSERT_TRUE(
              last == 0 || mode == consumer_mode::share ||
              (mode == consumer_mode::latest ? item->number() > last : item->number() == last + 1));
          last = item->number();
          if (random() % 50 == 0) {
            std::this_thread::sleep_for(1ms);
          }
          if (random() % 100 != 0) {  // else it leaves with an item
            item->release();
          } else {
            break;
          }
        }
      }
    });
  }
  constexpr std::uint64_t items = 20'000;
  for (std::uint64_t i = 1; i <= items; ++i) {
    publish_one(producer);
  }
  done = true;
  readers.clear();
  EXPECT_GT(got, 0U);
  EXPECT_EQ(producer.stats().dropped, 0U);
}

}  // namespace
