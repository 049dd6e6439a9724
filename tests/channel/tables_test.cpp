// SPDX-License-Identifier: Apache-2.0
// The tables of a channel's consumers: several acquired slots, what death leaves behind, and
// members that store what is not possible. Runs of whole channels: replay.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "channel/consumer_table.hpp"
#include "channel/producer_table.hpp"
#include "page_memory.hpp"

namespace gpushm::channel {
namespace {

using gpushm_testing::page_memory;
using outcome = consumer_table::outcome;

constexpr std::uint64_t slots_segment = 7;
constexpr std::uint64_t stride = 512;
constexpr std::uint64_t joined_page = 11;

struct consumer {
  page_memory memory{sync::timeline_page_bytes};
  consumer_mode mode;
  std::uint32_t held;
  consumer_table table;

  explicit consumer(consumer_mode how, std::uint32_t holds = 0)
      : mode(how), held(holds), table(memory.page(), 0, how, holds) {}
  [[nodiscard]] consumer_view as_member(std::uint64_t id) const {
    consumer_view result;
    result.id = id;
    result.mode = mode;
    result.held = held;
    result.depth = mode == consumer_mode::share ? 2 : 0;
    result.page = &memory.page();
    return result;
  }
  [[nodiscard]] std::atomic<std::uint64_t>& held_timeline(std::uint32_t index) const {
    return memory.page().words[first_held_timeline + index];
  }
};

struct producer {
  std::uint32_t slots;
  page_memory memory;
  producer_table table;

  explicit producer(std::uint32_t count)
      : slots(count), memory(page_bytes(count)), table(memory.page(), memory.table(), shape()) {}
  producer(std::uint32_t count, const table_view& previous)
      : slots(count),
        memory(page_bytes(count)),
        table(memory.page(), memory.table(), shape(), previous) {}

  [[nodiscard]] producer_table::shape shape() const {
    return {slots, stride, stride, slots_segment};
  }
  [[nodiscard]] table_view view() const {
    return table_view::of(memory.page(), memory.table(), memory.table_bytes()).value();
  }
  [[nodiscard]] table_head& head() const { return *reinterpret_cast<table_head*>(memory.table()); }
  [[nodiscard]] row& row_of(std::uint32_t slot) const {
    return reinterpret_cast<row*>(memory.table() + rows_offset)[slot];
  }
  [[nodiscard]] sync::timeline_writer timeline(std::uint32_t index) const {
    return {memory.page(), index};
  }
  void join(consumer& consumer, std::uint64_t id) {
    table.add(consumer.as_member(id));
    consumer.table.attach(view().within(slots_segment, stride * slots).value(),
                          view().start_of(id).value(),
                          view().entry_of(id).value(),
                          joined_page);
  }
  producer_table::choice acquire() {
    const auto chosen = table.choose().value();
    EXPECT_TRUE(table.acquire(chosen));
    return chosen;
  }
  std::uint64_t announce(const producer_table::choice& choice) {
    const std::uint64_t number = table.prepare(choice, {});
    table.announce(choice);
    return number;
  }
  void publish(std::uint64_t number) const {
    EXPECT_EQ(timeline(published_timeline).signal(number), sync::signal_result::done);
  }
  std::uint32_t publish_one() {
    const auto claim = acquire();
    publish(announce(claim));
    return claim.slot;
  }
  void die() const {
    for (std::uint32_t index = 0; index != producer_timelines; ++index) {
      timeline(index).close(sync::word_kind::ended);
    }
  }
};

std::optional<std::uint64_t> take(consumer& consumer) {
  consumer_table::item item;
  return consumer.table.take(item) == outcome::taken ? std::optional(item.number) : std::nullopt;
}

/// What the writer of the next item has to wait for.
std::optional<producer_table::obstacle> next_obstacle(const producer& producer, bool on_stream) {
  return producer.table.next_obstacle(producer.table.choose(), on_stream);
}

TEST(channel_tables, wait_for_consumers_of_each_item_to_take_and_to_release) {
  producer from(2);
  consumer block(consumer_mode::block);
  from.join(block, 1);
  EXPECT_FALSE(next_obstacle(from, false));
  from.publish_one();
  from.publish_one();
  for (const bool on_stream : {false, true}) {
    const auto taken = next_obstacle(from, on_stream);
    ASSERT_TRUE(taken);
    EXPECT_EQ(taken->consumer->id, 1U);
    EXPECT_EQ(taken->timeline, taken_timeline);
    EXPECT_EQ(taken->value, 1U);
    EXPECT_FALSE(taken->has_alternatives);
  }
  EXPECT_EQ(take(block), 1);
  const auto released = next_obstacle(from, false);
  ASSERT_TRUE(released);
  EXPECT_EQ(released->timeline, released_timeline);
  EXPECT_EQ(released->value, 1U);
  EXPECT_FALSE(next_obstacle(from, true)) << "the stream waits for the release";
}

TEST(channel_tables, wait_for_any_consumer_that_shares_the_work_and_has_some) {
  producer from(8);
  consumer idle(consumer_mode::share);
  from.join(idle, 1);
  for (int i = 0; i != 2; ++i) {  // its depth
    EXPECT_FALSE(next_obstacle(from, true));
    from.publish_one();
  }
  for (const bool on_stream : {false, true}) {
    const auto full = next_obstacle(from, on_stream);
    ASSERT_TRUE(full);
    EXPECT_EQ(full->consumer->id, 1U);
    EXPECT_EQ(full->timeline, released_timeline);
    EXPECT_EQ(full->value, 1U);
    EXPECT_TRUE(full->has_alternatives);
  }
  consumer other(consumer_mode::share);
  from.join(other, 2);
  EXPECT_FALSE(next_obstacle(from, true)) << "the other one has room";
}

TEST(channel_tables, wait_for_the_producer_itself_while_every_slot_is_acquired) {
  producer from(2);
  static_cast<void>(from.acquire());
  static_cast<void>(from.acquire());
  const auto all_acquired = next_obstacle(from, true);
  ASSERT_TRUE(all_acquired);
  EXPECT_EQ(all_acquired->consumer, nullptr);
  EXPECT_EQ(all_acquired->timeline, announced_timeline);
  EXPECT_TRUE(all_acquired->has_alternatives);
}

TEST(channel_tables, number_items_in_the_order_of_their_publication) {
  producer from(3);
  consumer block(consumer_mode::block);
  from.join(block, 1);
  const auto first = from.acquire();
  const auto second = from.acquire();
  const auto third = from.acquire();
  EXPECT_THAT((std::vector{first.slot, second.slot, third.slot}),
              testing::UnorderedElementsAre(0, 1, 2));
  EXPECT_FALSE(from.table.choose()) << "all are acquired";
  EXPECT_EQ(from.announce(second), 1);
  EXPECT_EQ(from.announce(third), 2);
  from.table.abandon(first);
  EXPECT_EQ(from.view().slot_of(1), second.slot);
  EXPECT_EQ(from.view().item_in(third.slot), 2);
  EXPECT_EQ(take(block), 1);
  EXPECT_EQ(take(block), 2);
  EXPECT_EQ(take(block), std::nullopt);
  EXPECT_EQ(from.table.choose()->slot, first.slot) << "it has no item";
}

TEST(channel_tables, keep_the_newest_item_when_several_slots_are_acquired) {
  producer from(4);
  consumer latest(consumer_mode::latest, 1);
  from.join(latest, 1);
  from.publish_one();
  EXPECT_EQ(take(latest), 1);
  const auto newest = from.publish_one();
  EXPECT_NE(from.acquire().slot, newest);
  const auto second = from.acquire();
  EXPECT_NE(second.slot, newest);
  EXPECT_FALSE(from.table.choose()) << "one is held, one has the newest item";
  latest.held_timeline(0).store(0);
  ASSERT_TRUE(from.table.choose());
  EXPECT_NE(from.table.choose()->slot, newest);
  EXPECT_EQ(take(latest), 2);
}

/// An acquired slot has no number yet: a joiner starts at the newest item that is in one.
TEST(channel_tables, let_others_join_while_slots_are_acquired) {
  producer from(3);
  from.publish_one();
  const auto first = from.acquire();
  const auto second = from.acquire();
  consumer block(consumer_mode::block);
  from.join(block, 1);
  EXPECT_EQ(take(block), 1);
  from.announce(second);
  from.announce(first);
  EXPECT_EQ(take(block), 2);
  EXPECT_EQ(take(block), 3);
}

TEST(channel_tables, take_back_what_a_stream_has_refused) {
  producer from(2);
  consumer block(consumer_mode::block);
  consumer share(consumer_mode::share);
  from.join(block, 1);
  from.join(share, 2);
  const auto first = from.acquire();
  const auto second = from.acquire();
  EXPECT_EQ(from.table.prepare(first, {}), 1);
  EXPECT_EQ(take(block), std::nullopt) << "it is not announced";
  from.table.withdraw(first);
  EXPECT_EQ(from.table.announced(), 0);
  EXPECT_EQ(from.announce(second), 1) << "the number is used by the next one";
  from.publish(1);
  consumer_table::item item;
  ASSERT_EQ(block.table.take(item), outcome::taken);
  EXPECT_EQ(item.slot, second.slot);
  EXPECT_EQ(take(share), 1);
  EXPECT_FALSE(from.table.choose()) << "the first one is still acquired";
  EXPECT_EQ(from.announce(first), 2);
}

/// A stream has the store of an item before the CPU announces it, and the CPU dies between.
TEST(channel_tables, end_at_the_last_item_that_was_announced_and_published) {
  producer previous(3);
  consumer block(consumer_mode::block);
  consumer share(consumer_mode::share);
  consumer latest(consumer_mode::latest, 1);
  previous.join(block, 1);
  previous.join(share, 2);
  previous.join(latest, 3);
  previous.publish_one();
  const auto claim = previous.acquire();
  EXPECT_EQ(previous.table.prepare(claim, {}), 2);
  previous.publish(2);
  ASSERT_EQ(previous.table.consumers().size(), 3U);
  EXPECT_TRUE(previous.table.is_plausible(previous.table.consumers().front()));
  previous.die();
  EXPECT_EQ(previous.view().last_good(), 1);
  consumer_table::item item;
  for (consumer* const each : {&block, &share}) {
    EXPECT_EQ(each->table.take(item), outcome::taken);
    EXPECT_EQ(item.number, 1);
    EXPECT_EQ(each->table.take(item), outcome::ended);
  }
  const producer next(3, previous.view());
  EXPECT_EQ(next.table.first_item(), 2);
  EXPECT_EQ(next.table.last_of_previous(), 1);
  EXPECT_EQ(next.view().last_good(), 1);
  // As after an orderly end: consumers of the newest look at the last value, too.
  previous.table.close();
  EXPECT_EQ(take(latest), 1);
  EXPECT_EQ(latest.table.take(item), outcome::ended);
}

/// Each acquired slot of a dead producer may have the item that a `held` word names: it has died
/// before it read those words again.
TEST(channel_tables, continue_without_slots_that_a_dead_producer_had_acquired_and_others_hold) {
  producer previous(6);
  consumer latest(consumer_mode::latest, 2);
  previous.join(latest, 1);
  std::vector<std::uint32_t> slot_of_item{0};
  for (int i = 0; i != 6; ++i) {
    slot_of_item.push_back(previous.publish_one());
  }
  const auto first = previous.acquire();
  const auto second = previous.acquire();
  EXPECT_EQ(first.slot, slot_of_item[1]);
  EXPECT_EQ(second.slot, slot_of_item[2]);
  latest.held_timeline(0).store(1);
  latest.held_timeline(1).store(2);
  previous.die();
  producer next(6, previous.view());
  next.table.add(latest.as_member(1));
  std::vector<std::uint32_t> chosen;
  for (int i = 0; i != 4; ++i) {
    chosen.push_back(next.acquire().slot);
  }
  EXPECT_FALSE(next.table.choose());
  EXPECT_THAT(chosen, testing::Not(testing::Contains(first.slot)));
  EXPECT_THAT(chosen, testing::Not(testing::Contains(second.slot)));
}

// ---- what other members store ----

TEST(channel_tables, have_slots_inside_of_their_segment_only) {
  const producer from(4);
  const table_view view = from.view();
  EXPECT_FALSE(view.within(slots_segment, stride * 4 - 1));
  EXPECT_FALSE(view.within(slots_segment + 1, stride * 4));
  EXPECT_FALSE(view.within(slots_segment, 0));
  const auto checked = view.within(slots_segment, stride * 4);
  ASSERT_TRUE(checked);
  // A view does not change with the memory, and the next one is another one.
  from.head().slot_stride = std::uint64_t{1} << 53U;
  from.head().slots = 1;
  from.head().segment = slots_segment + 1;
  from.head().last_of_previous = 5;
  EXPECT_EQ(checked->offset_of(3), 3 * stride);
  EXPECT_EQ(checked->slots(), 4U);
  EXPECT_EQ(checked->segment(), slots_segment);
  EXPECT_EQ(view.last_of_previous(), 0);
  from.head().last_of_previous = 0;
  EXPECT_FALSE(from.view().within(slots_segment + 1, stride * 4));
}

TEST(channel_tables, refuse_more_work_than_there_are_slots) {
  producer from(4);
  consumer share(consumer_mode::share);
  from.join(share, 1);
  from.publish_one();
  for (std::uint32_t slot = 0; slot != 4; ++slot) {
    from.row_of(slot).item.store(5);
  }
  from.memory.page().last[published_timeline].store(0);
  from.memory.page().words[published_timeline].store(sync::ended_word);
  from.memory.page().last[first_given_timeline].store(std::uint64_t{1} << 61U);
  from.memory.page().words[first_given_timeline].store(sync::ended_word);
  consumer_table::item item;
  EXPECT_EQ(share.table.take(item), outcome::invalid);
  EXPECT_EQ(share.table.take(item), outcome::invalid);
}

TEST(channel_tables, look_at_a_producer_that_is_always_faster_for_a_while_only) {
  producer from(4);
  consumer latest(consumer_mode::latest, 1);
  from.join(latest, 1);
  from.publish_one();
  for (std::uint32_t slot = 0; slot != 4; ++slot) {
    from.row_of(slot).item.store(5);
  }
  std::atomic<bool> is_over = false;
  std::thread hostile([&] {
    for (std::uint64_t number = 6; !is_over.load(); number = 6 + number % 1'000) {
      from.memory.page().words[announced_timeline].store(number);
    }
  });
  while (from.memory.page().words[announced_timeline].load() < 5) {
    std::this_thread::yield();
  }
  consumer_table::item item;
  for (int i = 0; i != 10'000; ++i) {
    const outcome found = latest.table.take(item);
    EXPECT_TRUE(found == outcome::not_yet || found == outcome::invalid);
    EXPECT_EQ(latest.held_timeline(0).load(), 0);
  }
  is_over = true;
  hostile.join();
}

/// A thread that stores anything in words of a memory.
class hostile_thread {
 public:
  explicit hostile_thread(std::vector<std::atomic<std::uint64_t>*> words)
      : words_(std::move(words)), thread_([this] { store(); }) {
    while (rounds_.load() < 1'000) {
      std::this_thread::yield();
    }
  }
  ~hostile_thread() {
    is_over_ = true;
    thread_.join();
  }

 private:
  void store() {
    constexpr std::array special{sync::ended_word,
                                 sync::moved_word,
                                 sync::max_value,
                                 std::uint64_t{1} << 61U,
                                 std::uint64_t{1} << 53U,
                                 ~std::uint64_t{0}};
    std::uint64_t random = 88'172'645'463'325'252U;
    for (; !is_over_.load(); rounds_.fetch_add(1)) {
      random ^= random << 13U;
      random ^= random >> 7U;
      random ^= random << 17U;
      const std::uint64_t small = (random >> 40U) % 12;
      words_[random % words_.size()]->store(
          (random >> 32U) % 4 == 0 ? special[(random >> 40U) % special.size()] : small);
    }
  }

  std::vector<std::atomic<std::uint64_t>*> words_;
  std::atomic<std::uint64_t> rounds_ = 0;
  std::atomic<bool> is_over_ = false;
  std::thread thread_;
};

/// What is atomic in a producer's memory, and its head.
std::vector<std::atomic<std::uint64_t>*> words_of(const producer& whose) {
  std::vector<std::atomic<std::uint64_t>*> result;
  const auto words_at = [&](void* first, std::size_t count) {
    for (std::size_t i = 0; i != count; ++i) {
      result.push_back(static_cast<std::atomic<std::uint64_t>*>(first) + i);
    }
  };
  words_at(&whose.memory.page().words, producer_timelines);
  words_at(&whose.memory.page().last, producer_timelines);
  words_at(whose.memory.table(), sizeof(table_head) / sizeof(std::uint64_t));
  for (std::uint32_t slot = 0; slot != whose.slots; ++slot) {
    words_at(&whose.row_of(slot).item, 2);
    words_at(&whose.row_of(slot).before, 1);
  }
  words_at(whose.memory.table() + order_offset(whose.slots),
           order_size(whose.slots) * sizeof(std::uint32_t) / sizeof(std::uint64_t));
  return result;
}

TEST(channel_tables, use_slots_of_the_segment_only_while_a_producer_stores_anything) {
  const producer from(4);
  const table_view first = from.view();
  const hostile_thread hostile(words_of(from));
  const std::uint64_t bytes = stride * from.slots;
  for (int round = 0; round != 3'000; ++round) {
    const auto view =
        table_view::of(from.memory.page(), from.memory.table(), from.memory.table_bytes());
    for (const auto& each : {std::optional(first), view}) {
      const auto checked = each ? each->within(slots_segment, bytes) : std::nullopt;
      if (!checked) {
        continue;
      }
      for (const auto mode : {consumer_mode::block, consumer_mode::latest, consumer_mode::share}) {
        consumer who(mode, mode == consumer_mode::latest ? 2 : 0);
        who.table.attach(*checked, 1 + static_cast<std::uint64_t>(round % 8), 0, joined_page);
        consumer_table::item item;
        if (who.table.take(item) == outcome::taken) {
          ASSERT_LE(item.offset, bytes);
          ASSERT_LE(item.bytes, bytes - item.offset);
        }
      }
      producer next(from.slots, *each);
      ASSERT_LE(next.table.last_of_previous(), next.table.announced());
    }
  }
}

TEST(channel_tables, use_free_slots_only_while_consumers_store_anything) {
  producer from(6);
  consumer block(consumer_mode::block);
  consumer latest(consumer_mode::latest, 2);
  consumer share(consumer_mode::share);
  std::vector<std::atomic<std::uint64_t>*> words;
  std::uint64_t id = 0;
  for (consumer* const each : {&block, &latest, &share}) {
    from.join(*each, ++id);
    for (std::uint32_t index = 0; index != first_held_timeline + 2; ++index) {
      words.push_back(&each->memory.page().words[index]);
      words.push_back(&each->memory.page().last[index]);
    }
  }
  const hostile_thread hostile(words);
  std::vector<producer_table::choice> acquired;
  for (int round = 0; round != 20'000; ++round) {
    for (const consumer_view& each : from.table.consumers()) {
      static_cast<void>(from.table.is_plausible(each));
      ASSERT_LE(producer_table::unreleased(each), each.given);
    }
    if (const auto chosen = from.table.choose(); chosen && from.table.acquire(*chosen)) {
      for (const auto& each : acquired) {
        ASSERT_NE(each.slot, chosen->slot);
      }
      acquired.push_back(*chosen);
    }
    if (acquired.size() == 3) {
      from.publish(from.announce(acquired[1]));
      acquired.erase(acquired.begin() + 1);
    }
    if (round % 1'000 == 999) {
      const consumer_view again = share.as_member(3);
      from.table.drop(again.id);
      from.table.add(again);
    }
  }
}

TEST(channel_tables, continue_after_a_producer_that_has_stored_anything) {
  constexpr std::uint64_t most = sync::max_value;
  for (const std::uint64_t announced : {std::uint64_t{0}, std::uint64_t{9}, most - 1, most + 1}) {
    for (const std::uint64_t published : {std::uint64_t{0}, std::uint64_t{9}, most, ~most}) {
      const producer previous(4);
      previous.die();
      previous.memory.page().last[announced_timeline].store(announced);
      previous.memory.page().last[published_timeline].store(published);
      for (std::uint32_t slot = 0; slot != 4; ++slot) {
        previous.row_of(slot).item.store(~std::uint64_t{slot});
        previous.row_of(slot).before.store(most - slot);
      }
      producer next(4, previous.view());
      EXPECT_LE(next.table.last_of_previous(), next.table.announced());
      for (int i = 0; i != 4; ++i) {
        EXPECT_LE(next.acquire().after, next.table.announced());
      }
    }
  }
}

}  // namespace
}  // namespace gpushm::channel
