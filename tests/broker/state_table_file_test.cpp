// SPDX-License-Identifier: Apache-2.0
// A state table that others can write: a member that is root opens its descriptor again.
#include "broker/state_table_file.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "base/file.hpp"
#include "base/guarded_fd.hpp"
#include "base/unique_fd.hpp"
#include "wire/state_table.hpp"

namespace gpushm::broker_detail {
namespace {

constexpr std::uint32_t slots = 8;
constexpr gpushm::epoch epoch{4, 5, 6};
constexpr std::uint32_t owner_died = FUTEX_OWNER_DIED;
constexpr std::uint32_t waiters = FUTEX_WAITERS;
constexpr std::size_t table_bytes = wire::state_table_bytes(slots);

/// The mapping of a member that can write.
class writing_member {
 public:
  explicit writing_member(const state_table_file& table)
      : mapping_(base::map_file("test", table.writable_descriptor(), table_bytes, true)) {}

  [[nodiscard]] std::byte* bytes() const { return static_cast<std::byte*>(mapping_.get().address); }
  [[nodiscard]] std::atomic_ref<std::uint32_t> owner() const {
    return std::atomic_ref<std::uint32_t>(
        reinterpret_cast<wire::state_table_header*>(bytes())->owner_futex);
  }

 private:
  base::unique_mapping mapping_;
};

TEST(state_table_file, has_nothing_but_the_documented_fields) {
  for (const bool resumable : {false, true}) {
    state_table_file table(slots, epoch, resumable);
    const auto mapping = base::map_file("test", table.descriptor(), table_bytes, false);
    const auto* const bytes = static_cast<const std::byte*>(mapping.get().address);
    table.lock();
    wire::state_table_header expected{};
    expected.magic = wire::state_table_magic;
    expected.version = wire::state_table_version;
    expected.slots = slots;
    expected.epoch = epoch;
    expected.resumable = resumable ? 1 : 0;
    expected.owner_futex = static_cast<std::uint32_t>(::gettid());
    EXPECT_EQ(std::memcmp(bytes, &expected, sizeof(expected)), 0);
    EXPECT_TRUE(std::all_of(bytes + sizeof(expected), bytes + table_bytes, [](std::byte each) {
      return each == std::byte{0};
    }));
    table.unlock();
    expected.owner_futex = 0;
    EXPECT_EQ(std::memcmp(bytes, &expected, sizeof(expected)), 0);
  }
}

TEST(state_table_file, owner_does_not_wait_and_its_end_is_seen_whatever_the_word_was) {
  state_table_file table(slots, epoch, true);
  const writing_member member(table);
  const auto foreign = static_cast<std::uint32_t>(::getpid());  // of a thread that lives
  for (const std::uint32_t before :
       {0U, foreign, foreign | waiters, owner_died | foreign, owner_died, 1U, ~0U}) {
    SCOPED_TRACE(before);
    member.owner().store(before);
    // It ends without `unlock`, as in a process that is killed.
    std::uint32_t seen = 0;
    std::uint32_t expected = 0;
    std::thread([&] {
      table.lock();
      expected = static_cast<std::uint32_t>(::gettid());
      seen = member.owner().load();
    }).join();
    EXPECT_EQ(seen, expected);
    EXPECT_EQ(member.owner().load(), owner_died);
  }
}

TEST(state_table_file, owner_ends_whatever_is_written_to_the_page) {
  state_table_file table(slots, epoch, true);
  const writing_member member(table);
  constexpr std::size_t step = 8;
  for (std::size_t at = 0; at != wire::state_table_words_offset; at += step) {
    std::thread([&] {
      table.lock();
      std::memset(member.bytes() + at, 0xA5, step);
      table.set(1, 7, segment_state::live);
      table.unlock();
    }).join();
    ASSERT_EQ(member.owner().load(), 0U) << at;
  }
}

class written_table : public testing::Test {
 protected:
  /// As the restorer of a successor does it. Precondition: no other owner.
  void continue_and_check() {
    state_table_file successor(base::guarded_fd(base::unique_fd(
                                   ::fcntl(table_.writable_descriptor(), F_DUPFD_CLOEXEC, 0))),
                               slots,
                               epoch);
    EXPECT_FALSE(successor.is_replacement());
    const auto mapping = base::map_file("test", successor.descriptor(), table_bytes, false);
    EXPECT_EQ(member_.owner().load(), owner_died) << "not paused";
    for (std::uint32_t slot = 0; slot != slots; ++slot) {
      successor.set(slot,
                    slot % 2 == 0 ? 0 : 99,
                    slot % 2 == 0 ? std::nullopt : std::optional(segment_state::exporter_gone));
    }
    const wire::state_table_view view(mapping.get().address, table_bytes, epoch);
    ASSERT_TRUE(view);
    for (std::uint32_t slot = 0; slot != slots; ++slot) {
      EXPECT_EQ(view.state(slot, 99),
                slot % 2 == 0 ? segment_state::removed : segment_state::exporter_gone);
    }
    std::thread([&] {
      successor.lock();
      EXPECT_TRUE(view.broker_alive());
      successor.unlock();
    }).join();
    EXPECT_FALSE(view.broker_alive());
    const auto* const bytes = static_cast<const std::byte*>(mapping.get().address);
    EXPECT_TRUE(std::all_of(bytes + 36, bytes + wire::state_table_words_offset, [](std::byte each) {
      return each == std::byte{0};
    }));
  }

  state_table_file table_{slots, epoch, true};
  const writing_member member_{table_};
};

TEST_F(written_table, is_continued_whatever_is_in_it) {
  constexpr std::size_t step = 8;
  for (const int garbage : {0, 0xA5, 0xFF}) {
    for (std::size_t at = 0; at != table_bytes; at += step) {
      std::memset(member_.bytes() + at, garbage, step);
      continue_and_check();
      ASSERT_FALSE(HasFailure()) << at << ", " << garbage;
    }
    std::memset(member_.bytes(), garbage, table_bytes);
    continue_and_check();
  }
  // Its pages can also be taken away.
  EXPECT_EQ(
      ::fallocate(
          table_.writable_descriptor(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, table_bytes),
      0);
  continue_and_check();
}

TEST_F(written_table, is_continued_whatever_its_mode_is) {
  for (const mode_t mode : {0U, 0444U, 0777U}) {
    ASSERT_EQ(::fchmod(table_.writable_descriptor(), mode), 0);
    continue_and_check();
    struct stat found {};
    ASSERT_EQ(::fstat(table_.writable_descriptor(), &found), 0);
    EXPECT_EQ(found.st_mode & 07777U, 0600U);
  }
}

TEST_F(written_table, is_replaced_if_it_is_lost_or_of_another_user) {
  const auto expect_another = [&](base::guarded_fd left) {
    const state_table_file successor(std::move(left), slots, epoch);
    EXPECT_TRUE(successor.is_replacement());
    const auto mapping = base::map_file("test", successor.descriptor(), table_bytes, false);
    EXPECT_TRUE(wire::state_table_view(mapping.get().address, table_bytes, epoch));
    struct stat old {};
    struct stat found {};
    EXPECT_EQ(::fstat(table_.descriptor(), &old), 0);
    EXPECT_EQ(::fstat(successor.descriptor(), &found), 0);
    EXPECT_NE(found.st_ino, old.st_ino);
    EXPECT_EQ(found.st_uid, ::geteuid());
    EXPECT_EQ(found.st_mode & 07777U, 0600U);
  };
  expect_another({});
  expect_another(base::unique_fd(::memfd_create("not-sealed", MFD_CLOEXEC)));
  if (::geteuid() == 0) {
    ASSERT_EQ(::fchown(table_.writable_descriptor(), 12'345, 12'345), 0);
    expect_another(base::unique_fd(::fcntl(table_.writable_descriptor(), F_DUPFD_CLOEXEC, 0)));
  }
}

}  // namespace
}  // namespace gpushm::broker_detail
