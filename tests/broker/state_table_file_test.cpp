// SPDX-License-Identifier: Apache-2.0
// A state table, as others see it.
#include "succession/recorder/state_table_file.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>

#include "base/files/file.hpp"
#include "base/files/unique_fd.hpp"
#include "protocol/wire/state_table.hpp"

namespace gpushm::broker_detail {
namespace {

constexpr std::uint32_t slots = 8;
constexpr gpushm::epoch epoch{4, 5, 6};
constexpr std::size_t table_bytes = wire::state_table_bytes(slots);

TEST(state_table_file, has_nothing_but_the_documented_fields) {
  for (const bool resumable : {false, true}) {
    succession::state_table_file table(slots, epoch, resumable);
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

TEST(state_table_file, owners_end_is_seen) {
  succession::state_table_file table(slots, epoch, true);
  const auto mapping = base::map_file("test", table.descriptor(), table_bytes, false);
  const std::atomic_ref<const std::uint32_t> owner(
      static_cast<const wire::state_table_header*>(mapping.get().address)->owner_futex);
  for (int i = 0; i != 2; ++i) {
    // It ends without `unlock`, as in a process that is killed.
    std::uint32_t seen = 0;
    std::uint32_t expected = 0;
    std::thread([&] {
      table.lock();
      expected = static_cast<std::uint32_t>(::gettid());
      seen = owner.load();
    }).join();
    EXPECT_EQ(seen, expected);
    EXPECT_EQ(owner.load(), FUTEX_OWNER_DIED);
  }
}

TEST(state_table_file, is_paused_until_it_has_an_owner) {
  succession::state_table_file table(slots, epoch, true);
  const auto mapping = base::map_file("test", table.descriptor(), table_bytes, false);
  const wire::state_table_view view(mapping.get().address, table_bytes, epoch);
  ASSERT_TRUE(view);
  EXPECT_FALSE(view.has_writer());
  EXPECT_TRUE(view.broker_alive());
  std::thread([&] {
    table.lock();
    EXPECT_TRUE(view.has_writer());
    table.unlock();
  }).join();
  EXPECT_FALSE(view.has_writer());
  EXPECT_FALSE(view.broker_alive());
}

TEST(state_table_file, cannot_be_written_by_others) {
  for (const bool resumable : {false, true}) {
    const succession::state_table_file table(slots, epoch, resumable);
    const base::unique_fd again(::open(
        ("/proc/self/fd/" + std::to_string(table.descriptor())).c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_TRUE(again);
    for (const int file : {table.descriptor(), again.get()}) {
      const char byte = 1;
      EXPECT_EQ(::mmap(nullptr, table_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0),
                MAP_FAILED);
      EXPECT_EQ(errno, EPERM);
      EXPECT_EQ(::pwrite(file, &byte, 1, 0), -1);
      EXPECT_NE(::ftruncate(file, 0), 0);
      EXPECT_NE(::ftruncate(file, 1 << 24), 0);
      EXPECT_NE(::fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4'096), 0);
      EXPECT_EQ(::fcntl(file, F_ADD_SEALS, F_SEAL_WRITE), -1);
    }
  }
}

}  // namespace
}  // namespace gpushm::broker_detail
