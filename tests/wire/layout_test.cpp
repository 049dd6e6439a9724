// SPDX-License-Identifier: Apache-2.0
// Shared memory read by other programs, both older and newer: offsets and values never change.
#include <gtest/gtest.h>
#include <linux/futex.h>

#include <array>
#include <cstring>
#include <memory>

#include "protocol/wire/state_table.hpp"

namespace gpushm::wire {
namespace {

TEST(state_table_layout, never_changes) {
  EXPECT_EQ(offsetof(state_table_header, magic), 0U);
  EXPECT_EQ(offsetof(state_table_header, version), 8U);
  EXPECT_EQ(offsetof(state_table_header, slots), 12U);
  EXPECT_EQ(offsetof(state_table_header, epoch), 16U);
  EXPECT_EQ(offsetof(state_table_header, owner_futex), 64U);
  EXPECT_EQ(state_table_words_offset, 4096U);
  EXPECT_EQ(state_table_bytes(0), 4096U);
  EXPECT_EQ(state_table_bytes(65'536), 4096U + 8U * 65'536U);
  EXPECT_EQ(state_table_bytes(UINT32_MAX), 4096U + 8ULL * UINT32_MAX);
  EXPECT_EQ(state_table_version, 1U);
  const std::uint64_t magic = state_table_magic;
  EXPECT_EQ(std::memcmp(&magic, "GSMSTAT1", 8), 0);
}

TEST(state_table_layout, has_states_with_fixed_numbers) {
  EXPECT_EQ(make_slot_word(0, slot_state::free), 0U);
  EXPECT_EQ(make_slot_word(1, slot_state::live), 0x101U);
  EXPECT_EQ(make_slot_word(1, slot_state::removed), 0x102U);
  EXPECT_EQ(make_slot_word(1, slot_state::exporter_gone), 0x103U);
  EXPECT_EQ(make_slot_word(1, slot_state::device_lost), 0x104U);
  EXPECT_EQ(make_slot_word(max_generation, slot_state::live), 0xFFFF'FFFF'FFFF'FF01U);
}

class state_table : public testing::Test {
 protected:
  static constexpr std::uint32_t slots = 4;
  struct alignas(64) page {
    std::array<std::byte, state_table_bytes(slots)> bytes{};
  };

  state_table() {
    header().magic = state_table_magic;
    header().version = state_table_version;
    header().slots = slots;
    header().epoch = epoch_;
    header().owner_futex = 4711;
    words()[1] = make_slot_word(10, slot_state::live);
    words()[2] = make_slot_word(11, slot_state::removed);
    words()[3] = make_slot_word(12, slot_state::exporter_gone);
  }

  state_table_header& header() {
    return *reinterpret_cast<state_table_header*>(page_->bytes.data());
  }
  std::uint64_t* words() {
    return reinterpret_cast<std::uint64_t*>(page_->bytes.data() + state_table_words_offset);
  }
  state_table_view view() { return {page_->bytes.data(), page_->bytes.size(), epoch_}; }

  std::unique_ptr<page> page_ = std::make_unique<page>();
  gpushm::epoch epoch_{9, 8, 7};
};

TEST_F(state_table, returns_state_of_generation) {
  const auto table = view();
  ASSERT_TRUE(table);
  EXPECT_EQ(table.state(1, 10), segment_state::live);
  EXPECT_EQ(table.state(2, 11), segment_state::removed);
  EXPECT_EQ(table.state(3, 12), segment_state::exporter_gone);
  words()[3] = make_slot_word(12, slot_state::device_lost);
  EXPECT_EQ(table.state(3, 12), segment_state::device_lost);
}

TEST_F(state_table, unknown_is_removed) {
  words()[0] = make_slot_word(13, static_cast<slot_state>(5));
  const auto table = view();
  EXPECT_EQ(table.state(0, 13), segment_state::removed) << "a state of a later version";
  EXPECT_EQ(table.state(1, 9), segment_state::removed) << "an older generation";
  EXPECT_EQ(table.state(1, 11), segment_state::removed) << "a newer generation";
  EXPECT_EQ(table.state(1, 10 + (std::uint64_t{1} << 56U)), segment_state::removed);
  EXPECT_EQ(table.state(slots, 10), segment_state::removed) << "after the last slot";
  EXPECT_EQ(table.state(UINT32_MAX, 0), segment_state::removed);
  words()[0] = 0;
  EXPECT_EQ(table.state(0, 0), segment_state::removed) << "a free slot";
}

TEST_F(state_table, shows_changes_immediately) {
  const auto table = view();
  words()[1] = make_slot_word(10, slot_state::removed);
  EXPECT_EQ(table.state(1, 10), segment_state::removed);
}

TEST_F(state_table, mismatched_header_is_rejected) {
  const struct {
    const char* what;
    void (*spoil)(state_table_header&);
  } cases[] = {
      {"magic", [](state_table_header& h) { h.magic ^= 1; }},
      {"version", [](state_table_header& h) { h.version = 2; }},
      {"epoch", [](state_table_header& h) { h.epoch[15] ^= 1; }},
      {"one more slot", [](state_table_header& h) { h.slots = slots + 1; }},
      {"maximum slots", [](state_table_header& h) { h.slots = UINT32_MAX; }},
  };
  const state_table_header good = header();
  for (const auto& each : cases) {
    header() = good;
    each.spoil(header());
    EXPECT_FALSE(view()) << each.what;
    EXPECT_FALSE(view().broker_alive()) << each.what;
    EXPECT_EQ(view().state(1, 10), segment_state::removed) << each.what;
  }
}

TEST_F(state_table, short_table_is_rejected) {
  for (const std::size_t size : {std::size_t{0},
                                 std::size_t{64},
                                 state_table_words_offset - 1,
                                 state_table_words_offset,
                                 state_table_bytes(slots) - 1}) {
    EXPECT_FALSE(state_table_view(page_->bytes.data(), size, epoch_)) << size;
  }
  EXPECT_TRUE(state_table_view(page_->bytes.data(), state_table_bytes(slots), epoch_));
}

TEST_F(state_table, empty_table_has_defaults) {
  const state_table_view nothing;
  EXPECT_FALSE(nothing);
  EXPECT_FALSE(nothing.broker_alive());
  EXPECT_EQ(nothing.state(0, 1), segment_state::removed);
}

TEST_F(state_table, distinguishes_live_dead_and_stopped_broker) {
  const auto table = view();
  EXPECT_TRUE(table.broker_alive());
  header().owner_futex = 4711U | FUTEX_WAITERS;
  EXPECT_TRUE(table.broker_alive());
  header().owner_futex = FUTEX_OWNER_DIED;
  EXPECT_FALSE(table.broker_alive());
  header().owner_futex = 4711U | FUTEX_OWNER_DIED;
  EXPECT_FALSE(table.broker_alive());
  header().owner_futex = 0;
  EXPECT_FALSE(table.broker_alive());
  header().owner_futex = FUTEX_WAITERS;
  EXPECT_FALSE(table.broker_alive());
}

TEST_F(state_table, without_its_broker_shows_what_is_known) {
  const auto table = view();
  header().resumable = 1;
  words()[1] = make_slot_word(7, slot_state::live);
  words()[2] = make_slot_word(8, slot_state::removed);
  header().owner_futex = 4711;
  EXPECT_TRUE(table.has_writer());
  EXPECT_FALSE(table.exists(1, 9));
  EXPECT_EQ(table.state(1, 9), segment_state::removed);

  // The slot may have been given to 9 by a successor, whose table is not here yet.
  header().owner_futex = FUTEX_OWNER_DIED;
  EXPECT_FALSE(table.has_writer());
  EXPECT_TRUE(table.broker_alive()) << "paused";
  EXPECT_EQ(table.state(1, 7), segment_state::live);
  EXPECT_EQ(table.state(2, 8), segment_state::removed);
  EXPECT_EQ(table.state(1, 9), segment_state::live);
  EXPECT_TRUE(table.exists(1, 9));
  table.end_pause();
  header().owner_futex = 4712;
  EXPECT_TRUE(table.has_writer());
  EXPECT_EQ(table.state(1, 9), segment_state::removed);

  // No successor: ended on purpose, and a broker that cannot have one.
  header().owner_futex = 0;
  EXPECT_FALSE(table.has_writer());
  EXPECT_EQ(table.state(1, 9), segment_state::removed);
  EXPECT_FALSE(table.exists(1, 9));
  header().owner_futex = FUTEX_OWNER_DIED;
  header().resumable = 0;
  EXPECT_EQ(table.state(1, 9), segment_state::removed);
  EXPECT_FALSE(table.exists(1, 9));
}

}  // namespace
}  // namespace gpushm::wire
