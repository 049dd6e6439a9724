// SPDX-License-Identifier: Apache-2.0
#include "core/slots.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "core/domain.hpp"
#include "core/saved_state.hpp"
#include "tests/core/world.hpp"

namespace gpushm::core {
namespace {

using namespace testing_world;

using words = std::map<std::uint32_t, std::pair<gpushm::generation, segment_state>>;

words shown(const slot_table& table) {
  words result;
  table.for_each([&](const slot_word& each) {
    EXPECT_TRUE(result.empty() || result.rbegin()->first < each.slot) << "not in order";
    result.emplace(each.slot, std::make_pair(each.generation, each.state.value()));
  });
  return result;
}

/// A reader of the state table, which sees the words that are to be shown and nothing else.
void show(words& words, const slot_word& word) {
  words.erase(word.slot);
  if (word.state) {
    words.emplace(word.slot, std::make_pair(word.generation, *word.state));
  }
}

TEST(slot_table, has_each_slot_once_and_shows_what_was_set) {
  constexpr std::uint32_t slots = 200;
  constexpr int steps = 100'000;
  std::mt19937 random(36);
  const auto pick = [&](std::size_t below) { return random() % below; };
  slot_table table(slots);
  words expected;
  words reader;
  std::set<std::uint32_t> free;
  for (std::uint32_t slot = 0; slot != slots; ++slot) {
    free.insert(slot);
  }
  gpushm::generation generation = 0;
  for (int step = 0; step != steps; ++step) {
    // Long phases in which most slots are taken, or most are released.
    const bool grows = step / 2'000 % 2 == 0;
    const auto used =
        std::next(expected.begin(),
                  static_cast<std::ptrdiff_t>(expected.empty() ? 0 : pick(expected.size())));
    if (pick(10) < (grows ? 6U : 2U)) {
      if (free.empty()) {
        errc code{};
        static_cast<void>(error_of([&] { static_cast<void>(table.take()); }, &code));
        EXPECT_EQ(code, errc::too_many_segments);
        continue;
      }
      const std::uint32_t slot = table.take();
      ASSERT_EQ(slot, *free.begin());
      free.erase(slot);
      const slot_word now = table.set(slot, ++generation, segment_state::live);
      ASSERT_EQ(now.slot, slot);
      ASSERT_EQ(now.generation, generation);
      ASSERT_EQ(now.state, segment_state::live);
      show(reader, now);
      expected[slot] = {generation, segment_state::live};
    } else if (expected.empty()) {
      continue;
    } else if (pick(3) == 0) {
      const auto state = pick(2) == 0 ? segment_state::removed : segment_state::exporter_gone;
      show(reader, table.set(used->first, used->second.first, state));
      used->second.second = state;
    } else {
      const slot_word now = table.release(used->first);
      ASSERT_EQ(now.slot, used->first);
      ASSERT_EQ(now.generation, used->second.first);
      ASSERT_FALSE(now.state);
      show(reader, now);
      free.insert(used->first);
      expected.erase(used);
    }
    ASSERT_EQ(table.in_use() + free.size(), slots);
    if (step % 500 == 0) {
      ASSERT_EQ(shown(table), expected);
      ASSERT_EQ(reader, expected);
      // Another process continues with the same words and the same free slots.
      slot_table next(slots);
      std::vector<slot_word> words;
      table.for_each([&](const slot_word& each) { words.push_back(each); });
      std::shuffle(words.begin(), words.end(), random);
      for (const slot_word& each : words) {
        ASSERT_TRUE(next.take(each));
      }
      ASSERT_EQ(next.in_use(), expected.size());
      table = std::move(next);
      ASSERT_EQ(shown(table), expected);
    }
  }
}

TEST(slot_table, takes_no_slot_twice_and_none_that_does_not_exist) {
  slot_table table(66);
  EXPECT_TRUE(table.take({65, 7, segment_state::removed}));
  EXPECT_FALSE(table.take({65, 8, segment_state::live}));
  EXPECT_FALSE(table.take({66, 8, segment_state::live}));
  EXPECT_FALSE(table.take({UINT32_MAX, 8, segment_state::live}));
  EXPECT_EQ(shown(table), (words{{65, {7, segment_state::removed}}}));
  EXPECT_EQ(table.in_use(), 1U);
  for (std::uint32_t slot = 0; slot != 65; ++slot) {
    EXPECT_EQ(table.take(), slot);
  }
  static_cast<void>(error_of([&] { static_cast<void>(table.take()); }));
  static_cast<void>(table.release(3));
  EXPECT_EQ(table.take(), 3U);
  EXPECT_EQ(shown(table).size(), 1U) << "a slot without a word was shown";
}

/// As an alias that is bound to another segment: a reader that has kept the word before sees that
/// it is another one (docs/adr/0006).
TEST(slot_table, has_a_new_word_for_each_binding_and_never_an_earlier_one) {
  slot_table table(4);
  const std::uint32_t alias = table.take();
  EXPECT_EQ(table.set(alias, 5, segment_state::live).generation, 5U);
  EXPECT_EQ(table.set(alias, 8, segment_state::live).generation, 8U);
  const slot_word late = table.set(alias, 5, segment_state::removed);
  EXPECT_EQ(late.generation, 8U);
  EXPECT_EQ(late.state, segment_state::live);
  EXPECT_EQ(shown(table), (words{{alias, {8, segment_state::live}}}));
  EXPECT_EQ(table.set(alias, 8, segment_state::exporter_gone).state, segment_state::exporter_gone);
  EXPECT_EQ(table.release(alias).generation, 8U);
  EXPECT_EQ(table.take(), alias);
  // A segment that is handed back has an older generation than what had the slot before.
  EXPECT_EQ(table.set(alias, 2, segment_state::live).generation, 2U);
}

/// Which slots are free is not a state of its own: a journal has only those in use.
TEST(slot_table, is_the_same_after_a_restart) {
  domain first("default", 42, {.max_segments = 8});
  first.connect(1, {101, 1'000, true});
  for (const char* const name : {"a", "b", "c", "d", "e"}) {
    static_cast<void>(first.reserve(1, host_segment(name)));
  }
  for (const char* const name : {"d", "b", "a"}) {
    first.release(1, first.stat(1, name).generation, 1);
  }
  first.pending().clear();
  saved_state saved = first.save();
  domain second("default", 42, {.max_segments = 8}, nullptr, saved);
  EXPECT_EQ(shown(second.slots()), shown(first.slots()));
  EXPECT_TRUE(second.pending().slots.empty()) << "a restart shows the whole table";
  for (const char* const name : {"f", "g", "h", "i", "j", "k"}) {
    EXPECT_EQ(second.reserve(1, host_segment(name)).slot,
              first.reserve(1, host_segment(name)).slot);
  }
  EXPECT_EQ(shown(second.slots()), shown(first.slots()));
}

TEST(slot_table, of_a_damaged_journal_is_refused) {
  domain first("default", 42, {.max_segments = 8});
  first.connect(1, {101, 1'000, true});
  static_cast<void>(first.reserve(1, host_segment("a")));
  const auto second = first.reserve(1, host_segment("b")).generation;
  first.pending().clear();
  for (const std::uint32_t slot : {0U, 8U, UINT32_MAX}) {
    saved_state saved = first.save();
    std::get<saved_segment>(saved.records.at({record_kind::segment, second})).slot = slot;
    errc code{};
    static_cast<void>(
        error_of([&] { domain("default", 42, {.max_segments = 8}, nullptr, saved); }, &code));
    EXPECT_EQ(code, errc::invalid_argument) << slot;
  }
}

}  // namespace
}  // namespace gpushm::core
