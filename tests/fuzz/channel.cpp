// SPDX-License-Identifier: Apache-2.0
// A member of a channel that stores anything in its shared memory, between any two steps of the
// others: a producer, or its consumers. The others stay within their memory (sanitizers see more of
// that), each step ends, and what they find is possible.
//
// The first byte: bit 0: the producer is the hostile one; the rest: slots. Then steps: one byte and
// its operands.
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "channel/consumer_table.hpp"
#include "channel/producer_table.hpp"
#include "tests/channel/page_memory.hpp"
#include "tests/fuzz/require.hpp"

namespace {

using gpushm_testing::page_memory;
namespace channel = gpushm::channel;
namespace sync = gpushm::sync;
using channel::consumer_mode;

constexpr std::uint64_t segment = 7;
constexpr std::uint64_t slot_bytes = 500;
constexpr std::uint64_t stride = 512;
constexpr std::uint32_t most_slots = 8;
constexpr std::size_t most_producers = 4;

class script {
 public:
  script(const std::uint8_t* data, std::size_t size) : at_(data), end_(data + size) {}
  [[nodiscard]] bool is_over() const { return at_ == end_; }
  std::uint64_t bytes(std::size_t count) {
    std::uint64_t result = 0;
    for (; count != 0 && at_ != end_; --count) {
      result = result << 8U | *at_++;
    }
    return result;
  }
  std::uint8_t byte() { return static_cast<std::uint8_t>(bytes(1)); }
  /// A value: one of those that mean something, or any.
  std::uint64_t value() {
    constexpr std::array special{sync::ended_word,
                                 sync::moved_word,
                                 sync::max_value,
                                 sync::max_value - 1,
                                 std::uint64_t{1} << 61U,
                                 ~std::uint64_t{0},
                                 channel::refused_invalid,
                                 std::uint64_t{1} << 53U};
    const std::uint8_t first = byte();
    return first < special.size()    ? special[first]
           : first == special.size() ? bytes(8)
                                     : std::uint64_t{first} - special.size() - 1;
  }

 private:
  const std::uint8_t* at_;
  const std::uint8_t* end_;
};

struct consumer {
  page_memory memory{sync::timeline_page_bytes};
  consumer_mode mode;
  std::uint32_t held;
  channel::consumer_table table;
  bool is_attached = false;
  explicit consumer(consumer_mode how)
      : mode(how), held(how == consumer_mode::latest ? 2 : 0), table(memory.page(), 0, how, held) {}
};

struct producer {
  page_memory memory;
  channel::producer_table table;
  std::vector<channel::producer_table::choice> acquired;
  producer(const channel::producer_table::shape& shape, const channel::table_view* previous)
      : memory(channel::page_bytes(shape.slots)),
        table(previous == nullptr
                  ? channel::producer_table(memory.page(), memory.table(), shape)
                  : channel::producer_table(memory.page(), memory.table(), shape, *previous)) {}
  [[nodiscard]] std::optional<channel::table_view> view() const {
    return channel::table_view::of(memory.page(), memory.table(), memory.table_bytes());
  }
};

class world {
 public:
  explicit world(script& steps) : steps_(steps) {
    const std::uint8_t first = steps.byte();
    is_producer_hostile_ = (first & 1U) != 0;
    shape_ = {1 + (first >> 1U) % most_slots, slot_bytes, stride, segment};
    producers_.push_back(std::make_unique<producer>(shape_, nullptr));
    for (const auto mode : {consumer_mode::block, consumer_mode::latest, consumer_mode::share}) {
      consumers_.push_back(std::make_unique<consumer>(mode));
    }
  }

  void step() {
    constexpr std::uint8_t kinds = 14;
    switch (steps_.byte() % kinds) {
      case 0:
      case 1:
        return store();
      case 2:
        return store_in_head();
      case 3:
        return join();
      case 4:
        return attach();
      case 5:
        return take();
      case 6:
        return release();
      case 7:
        return acquire();
      case 8:
        return publish();
      case 9:
        return abandon();
      case 10:
        return drop();
      case 11:
        return look();
      case 12:
        return end();
      default:
        return take_over();
    }
  }

 private:
  [[nodiscard]] producer& now() const { return *producers_.back(); }
  consumer& any_consumer() { return *consumers_[steps_.byte() % consumers_.size()]; }
  [[nodiscard]] channel::consumer_view as_member(const consumer& consumer) const {
    channel::consumer_view result;
    result.id = id_of(consumer);
    result.mode = consumer.mode;
    result.held = consumer.held;
    result.depth = consumer.mode == consumer_mode::share ? 2 : 0;
    result.page = &consumer.memory.page();
    return result;
  }
  [[nodiscard]] std::uint64_t id_of(const consumer& consumer) const {
    const auto at = std::find_if(consumers_.begin(), consumers_.end(), [&](const auto& each) {
      return each.get() == &consumer;
    });
    return static_cast<std::uint64_t>(at - consumers_.begin()) + 1;
  }

  /// Anything, anywhere in the memory of a hostile member.
  void store() {
    page_memory& to = is_producer_hostile_ ? producers_[steps_.byte() % producers_.size()]->memory
                                           : any_consumer().memory;
    const std::size_t words =
        (sync::timeline_page_bytes + to.table_bytes()) / sizeof(std::uint64_t);
    auto* const first = reinterpret_cast<std::atomic<std::uint64_t>*>(&to.page());
    const std::size_t where = steps_.bytes(2) % words;
    first[where].store(steps_.value());
  }
  /// The same, where it matters most.
  void store_in_head() {
    if (is_producer_hostile_) {
      auto* const first = reinterpret_cast<std::atomic<std::uint32_t>*>(now().memory.table());
      const std::size_t where = steps_.byte() % (sizeof(channel::table_head) / 4);
      first[where].store(static_cast<std::uint32_t>(steps_.value()));
    } else {
      auto& words = any_consumer().memory.page().words;
      words[steps_.byte() % (channel::first_held_timeline + 2)].store(steps_.value());
    }
  }

  void join() {
    const auto consumer_view = as_member(any_consumer());
    const auto& consumers = now().table.consumers();
    const bool is_known = std::any_of(consumers.begin(), consumers.end(), [&](const auto& each) {
      return each.id == consumer_view.id;
    });
    if (is_known) {
      return;
    }
    if (now().table.has_room(consumer_view)) {
      now().table.add(consumer_view);
    } else {
      now().table.refuse(consumer_view.id, channel::refused_too_many);
    }
  }
  /// As `gpushm_consumer` does it.
  void attach() {
    consumer& who = any_consumer();
    const auto view = now().view();
    if (!view) {
      GPUSHM_REQUIRE(is_producer_hostile_);
      return;
    }
    const auto start = view->start_of(id_of(who));
    const auto entry = view->entry_of(id_of(who));
    const auto checked = view->within(segment, stride * shape_.slots);
    if (start && entry && checked && *start <= sync::max_value) {
      who.table.attach(*checked, *start, *entry, producers_.size());
      who.is_attached = true;
    }
  }
  void take() {
    consumer& who = any_consumer();
    channel::consumer_table::item item;
    if (!who.is_attached || who.table.take(item) != channel::consumer_table::outcome::taken) {
      return;
    }
    const std::uint64_t bytes = stride * shape_.slots;
    GPUSHM_REQUIRE(item.number != 0 && item.number <= sync::max_value);
    GPUSHM_REQUIRE(item.offset <= bytes && item.bytes <= bytes - item.offset);
    GPUSHM_REQUIRE(item.metadata_bytes <= item.metadata.size());
    GPUSHM_REQUIRE(item.held_timeline < channel::first_held_timeline + 2);
    GPUSHM_REQUIRE(is_producer_hostile_ || item.number <= now().table.announced());
  }
  void release() {
    consumer& who = any_consumer();
    const std::uint64_t number = steps_.byte();
    if (who.mode == consumer_mode::latest) {
      who.memory.page().words[channel::first_held_timeline + number % 2].store(0);
    } else {
      static_cast<void>(
          sync::timeline_writer(who.memory.page(), channel::released_timeline).signal(number));
    }
  }

  void acquire() {
    const auto chosen = now().table.choose();
    if (!chosen) {
      return;
    }
    GPUSHM_REQUIRE(chosen->slot < shape_.slots);
    GPUSHM_REQUIRE(chosen->after <= now().table.announced());
    for (const auto& each : now().acquired) {
      GPUSHM_REQUIRE(each.slot != chosen->slot);
    }
    if (now().table.acquire(*chosen)) {
      now().acquired.push_back(*chosen);
    }
  }
  std::optional<channel::producer_table::choice> any_acquired() {
    auto& acquired_slots = now().acquired;
    if (acquired_slots.empty()) {
      return std::nullopt;
    }
    const auto at =
        acquired_slots.begin() + static_cast<std::ptrdiff_t>(steps_.byte() % acquired_slots.size());
    const auto result = *at;
    acquired_slots.erase(at);
    return result;
  }
  void publish() {
    const auto claim = any_acquired();
    if (!claim) {
      return;
    }
    const std::uint8_t how = steps_.byte();
    const std::array<std::byte, channel::max_metadata_bytes> metadata{};
    const std::uint64_t before = now().table.announced();
    const std::uint64_t number = now().table.prepare(*claim, std::span(metadata).first(how));
    GPUSHM_REQUIRE(number == before + 1);
    if (how % 8 == 0) {
      now().table.withdraw(*claim);
      now().acquired.push_back(*claim);
    } else {
      static_cast<void>(
          sync::timeline_writer(now().memory.page(), channel::published_timeline).signal(number));
    }
    if (how % 8 > 1) {
      now().table.announce(*claim);
      GPUSHM_REQUIRE(now().table.announced() == number);
    } else if (how % 8 == 1) {
      now().acquired.push_back(*claim);  // its CPU has stopped between the two
    }
  }
  void abandon() {
    if (const auto what = any_acquired()) {
      now().table.abandon(*what);
    }
  }
  void drop() {
    const std::uint64_t id = id_of(any_consumer());
    now().table.drop(id);
    if ((steps_.byte() & 1U) != 0) {
      now().table.refuse(id, channel::refused_invalid);
    }
  }

  /// What everybody can ask.
  void look() {
    for (const channel::consumer_view& each : now().table.consumers()) {
      static_cast<void>(now().table.is_plausible(each));
      GPUSHM_REQUIRE(channel::producer_table::unreleased(each) <= each.given);
    }
    for (const bool on_stream : {false, true}) {
      const auto chosen = now().table.choose();
      const auto obstacle = now().table.next_obstacle(chosen, on_stream);
      GPUSHM_REQUIRE(chosen || obstacle);
    }
    const auto view = now().view();
    if (!view) {
      GPUSHM_REQUIRE(is_producer_hostile_);
      return;
    }
    const auto slot = view->slot_of(steps_.value());
    GPUSHM_REQUIRE(!slot || *slot < view->slots());
    const auto given = view->given_slot(steps_.byte() % channel::max_consumers, steps_.value());
    GPUSHM_REQUIRE(!given || *given < view->slots());
    std::array<std::byte, 3> metadata{};
    GPUSHM_REQUIRE(view->copy_metadata(slot.value_or(0), metadata) <= metadata.size());
    const auto checked = view->within(view->segment(), stride * shape_.slots);
    GPUSHM_REQUIRE(!checked || checked->offset_of(checked->slots() - 1) + checked->slot_bytes() <=
                                   stride * shape_.slots);
    GPUSHM_REQUIRE(is_producer_hostile_ || view->last_good() <= now().table.announced());
  }

  void end() {
    if ((steps_.byte() & 1U) != 0) {
      now().table.close();
    }
    for (std::uint32_t word = 0; word != channel::producer_timelines; ++word) {
      sync::timeline_writer(now().memory.page(), word).close(sync::word_kind::ended);
    }
  }
  void take_over() {
    const auto previous = now().view();
    if (!previous || producers_.size() == most_producers) {
      return;
    }
    producers_.push_back(std::make_unique<producer>(shape_, &*previous));
    GPUSHM_REQUIRE(now().table.last_of_previous() <= now().table.announced());
  }

  script& steps_;
  bool is_producer_hostile_ = false;
  channel::producer_table::shape shape_;
  std::vector<std::unique_ptr<producer>> producers_;
  std::vector<std::unique_ptr<consumer>> consumers_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  script steps(data, size);
  world all(steps);
  while (!steps.is_over()) {
    all.step();
  }
  return 0;
}
