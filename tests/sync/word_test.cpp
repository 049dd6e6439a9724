// SPDX-License-Identifier: Apache-2.0
#include "sync/word.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <memory>
#include <random>

#include "sync/timeline_page.hpp"

namespace gpushm::sync {
namespace {

TEST(word, terminal_words_release_every_valid_wait) {
  std::mt19937_64 random(1);
  for (int i = 0; i != 100'000; ++i) {
    const std::uint64_t value = random() >> (random() % 64U);
    if (value > max_value) {
      continue;
    }
    ASSERT_TRUE(releases(ended_word, value));
    ASSERT_TRUE(releases(moved_word, value));
    ASSERT_EQ(kind_of(value), word_kind::value);
  }
  EXPECT_TRUE(releases(ended_word, max_value));
  EXPECT_TRUE(releases(moved_word, max_value));
}

TEST(word, conditions_are_values_or_any_of_some_flags) {
  EXPECT_TRUE(condition(5).is_met_by(7));
  EXPECT_FALSE(condition(5).is_met_by(4));
  EXPECT_TRUE(condition::any_of(6).is_met_by(4));
  EXPECT_FALSE(condition::any_of(6).is_met_by(9));
  EXPECT_FALSE(condition::any_of(all_flags).is_met_by(0));
  for (std::uint64_t flag = 1; flag <= all_flags; flag <<= 1U) {
    EXPECT_TRUE(condition::any_of(flag).is_met_by(ended_word));
    EXPECT_TRUE(condition::any_of(flag).is_met_by(moved_word));
  }
}

/// Why the end is not 2^64 - 1, and why values end at 2^62 - 1.
TEST(word, comparison_is_cyclic) {
  EXPECT_FALSE(releases(~std::uint64_t{0}, 1));
  EXPECT_TRUE(releases(3, ~std::uint64_t{0} - 5));
  EXPECT_FALSE(releases(ended_word, std::uint64_t{1} << 63U));
  EXPECT_TRUE(releases(5, 5));
  EXPECT_FALSE(releases(4, 5));
  EXPECT_TRUE(releases(max_value, 0));
  EXPECT_FALSE(releases(0, max_value));
}

TEST(word, kinds) {
  EXPECT_EQ(kind_of(0), word_kind::value);
  EXPECT_EQ(kind_of(max_value), word_kind::value);
  EXPECT_EQ(kind_of(max_value + 1), word_kind::invalid);
  EXPECT_EQ(kind_of((std::uint64_t{moved_byte} << 56U) - 1), word_kind::invalid);
  EXPECT_EQ(kind_of(moved_word), word_kind::moved);
  EXPECT_EQ(kind_of(ended_word), word_kind::ended);
  EXPECT_EQ(kind_of(ended_word + 1), word_kind::invalid);
  EXPECT_EQ(kind_of(~std::uint64_t{0}), word_kind::invalid);
}

/// The broker ends a word by its first byte, and then stores the others in any order.
TEST(word, one_byte_ends_any_value) {
  std::mt19937_64 random(2);
  for (int i = 0; i != 10'000; ++i) {
    const std::uint64_t value = random() & max_value;
    std::uint64_t word = (value & 0xFF'FFFF'FFFF'FFFFU) | (std::uint64_t{ended_byte} << 56U);
    for (unsigned byte = 0; byte != 8; ++byte) {
      ASSERT_EQ(kind_of(word), word_kind::ended);
      ASSERT_TRUE(releases(word, max_value));
      ASSERT_TRUE(releases(word, 0));
      word |= std::uint64_t{0xFF} << (byte * 8U) & ended_word;
    }
    ASSERT_EQ(word, ended_word);
    ASSERT_TRUE(releases(std::uint64_t{moved_byte} << 56U, max_value));
  }
}

class page : public testing::Test {
 protected:
  std::unique_ptr<timeline_page> page_ = std::make_unique<timeline_page>();
  timeline_writer writer_{*page_, 7};
};

TEST_F(page, values_only_grow) {
  EXPECT_EQ(writer_.signal(3), signal_result::done);
  EXPECT_EQ(writer_.signal(3), signal_result::not_larger);
  EXPECT_EQ(writer_.signal(2), signal_result::not_larger);
  EXPECT_EQ(writer_.signal(max_value), signal_result::done);
  EXPECT_EQ(writer_.signal(max_value + 1), signal_result::out_of_range);
  EXPECT_EQ(writer_.signal(~std::uint64_t{0}), signal_result::out_of_range);
  EXPECT_EQ(writer_.reader().read().value(), max_value);
}

TEST_F(page, an_end_keeps_the_last_value) {
  for (const word_kind how : {word_kind::ended, word_kind::moved}) {
    writer_.reset(0);
    ASSERT_EQ(writer_.signal(41), signal_result::done);
    writer_.close(how);
    const reading reading = writer_.reader().read();
    EXPECT_EQ(reading.kind(), how);
    EXPECT_EQ(reading.value(), 41U);
    EXPECT_EQ(writer_.signal(42), signal_result::closed);
    writer_.close(word_kind::ended);
    EXPECT_EQ(writer_.reader().read(), reading) << "closed twice";
  }
}

TEST_F(page, timelines_do_not_touch_each_other) {
  for (std::uint32_t i = 0; i != words_per_page; ++i) {
    timeline_writer each(*page_, i);
    ASSERT_EQ(each.signal(i + 1), signal_result::done);
    if (i % 3 == 0) {
      each.close(word_kind::ended);
    }
    if (i % 5 == 0) {
      each.use_streams();
    }
  }
  for (std::uint32_t i = 0; i != words_per_page; ++i) {
    const timeline_reader each(*page_, i);
    EXPECT_EQ(each.read().value(), i + 1);
    EXPECT_EQ(each.read().kind(), i % 3 == 0 ? word_kind::ended : word_kind::value);
    EXPECT_EQ(each.is_signaled_by_streams(), i % 5 == 0);
  }
}

TEST_F(page, hostile_words_are_not_values) {
  for (const std::uint64_t word :
       {max_value + 1, std::uint64_t{1} << 62U, ended_word + 1, ~std::uint64_t{0}}) {
    page_->words[7] = word;
    EXPECT_EQ(writer_.reader().read().value(), std::nullopt);
  }
  page_->words[7] = ended_word;
  page_->last[7] = max_value + 1;
  EXPECT_EQ(writer_.reader().read().value(), std::nullopt);
}

}  // namespace
}  // namespace gpushm::sync
