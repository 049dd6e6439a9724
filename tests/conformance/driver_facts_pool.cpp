// SPDX-License-Identifier: Apache-2.0
// Memory pools whose memory other processes import (D).
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>

#include "tests/conformance/driver_facts_fixture.hpp"

namespace gpushm::conformance {
namespace {

using namespace gpushm::cuda;

// An exportable pool in an agent, and its descriptor.
struct exported_pool {
  explicit exported_pool(agent& maker) {
    const answer created =
        maker.request(order::pool_make, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    EXPECT_OK(created);
    handle = created.value;
    answer exported = maker.request(order::pool_descriptor, handle);
    EXPECT_OK(exported);
    fd = std::move(exported.fd);
  }
  std::uint64_t handle = 0;
  base::unique_fd fd;
};

// An allocation of a pool, filled with one byte.
struct exported_pointer {
  exported_pointer(agent& maker, const exported_pool& pool, int byte, std::uint64_t bytes = small) {
    const answer created = maker.request(order::pool_alloc, bytes, pool.handle);
    EXPECT_OK(created);
    address = created.value;
    fill_at(maker, address, bytes, byte);
    data = maker.request(order::pool_pointer, address);
    EXPECT_OK(data);
  }
  std::uint64_t address = 0;
  answer data;
};

std::uint64_t open_pool(agent& user, const base::unique_fd& fd) {
  const answer opened = user.request(order::pool_open, 0, 0, nullptr, fd.get());
  EXPECT_OK(opened);
  return opened.value;
}

std::uint64_t take(agent& user, std::uint64_t pool, const exported_pointer& pointer) {
  const answer taken = user.request(order::pool_take, pool, 0, pointer.data.bytes);
  EXPECT_OK(taken);
  return taken.value;
}

// Allocates until the pool returns the memory at `address` again, and fills it.
void reallocate(agent& maker, const exported_pool& pool, std::uint64_t address, int byte) {
  for (int tries = 0; tries < 16; ++tries) {
    const answer created = maker.request(order::pool_alloc, small, pool.handle);
    ASSERT_OK(created);
    if (created.value == address) {
      fill_at(maker, address, small, byte);
      return;
    }
  }
  FAIL() << "the pool did not return that memory again";
}

TEST_F(driver_facts, D1_pointers_are_exported_only_after_their_pool) {
  agent maker;
  const answer pool = maker.request(order::pool_make, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  ASSERT_OK(pool);
  const answer memory = maker.request(order::pool_alloc, small, pool.value);
  ASSERT_OK(memory);
  EXPECT_EQ(maker.request(order::pool_pointer, memory.value).result, CUDA_ERROR_INVALID_VALUE);
  ASSERT_OK(maker.request(order::pool_descriptor, pool.value));
  EXPECT_OK(maker.request(order::pool_pointer, memory.value));
}

TEST_F(driver_facts, D1_pool_descriptor_is_the_control_node) {
  if (on_fake_driver()) {
    GTEST_SKIP() << "the fake's descriptor is a file";
  }
  agent maker;
  const exported_pool pool(maker);
  std::array<char, 64> target{};
  const std::string link = "/proc/self/fd/" + std::to_string(pool.fd.get());
  ASSERT_GT(::readlink(link.c_str(), target.data(), target.size() - 1), 0);
  EXPECT_STREQ(target.data(), "/dev/nvidiactl");
}

TEST_F(driver_facts, D2_second_import_is_same_pool_and_pointer) {
  agent maker;
  agent user;
  const exported_pool pool(maker);
  const exported_pointer memory(maker, pool, 0xd2);
  const std::uint64_t opened = open_pool(user, pool.fd);
  EXPECT_EQ(open_pool(user, pool.fd), opened);
  const std::uint64_t address = take(user, opened, memory);
  EXPECT_EQ(take(user, opened, memory), address);
  EXPECT_EQ(wrong_bytes_at(user, address, small, 0xd2), 0U);
}

TEST_F(driver_facts, D3_imported_pool_cannot_be_read_only) {
  agent maker;
  agent user;
  const exported_pool pool(maker);
  const std::uint64_t opened = open_pool(user, pool.fd);
  EXPECT_EQ(user.request(order::pool_access, opened, CU_MEM_ACCESS_FLAGS_PROT_READ).result,
            CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_OK(user.request(order::pool_access, opened, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
}

TEST_F(driver_facts, D4_imported_pool_is_destroyed_after_its_pointers) {
  for (const order free_order : {order::pool_free, order::device_free}) {
    agent maker;
    agent user;
    const exported_pool pool(maker);
    const exported_pointer first(maker, pool, 0xd4);
    const exported_pointer second(maker, pool, 0xd5);
    const std::uint64_t opened = open_pool(user, pool.fd);
    const std::uint64_t addresses[] = {take(user, opened, first), take(user, opened, second)};
    EXPECT_NE(addresses[0], addresses[1]);
    EXPECT_EQ(wrong_bytes_at(user, addresses[0], small, 0xd4), 0U);
    EXPECT_EQ(wrong_bytes_at(user, addresses[1], small, 0xd5), 0U);
    EXPECT_EQ(user.request(order::pool_trim, opened).result, CUDA_ERROR_INVALID_VALUE);
    for (const std::uint64_t address : addresses) {
      EXPECT_EQ(user.request(order::pool_destroy, opened).result, CUDA_ERROR_INVALID_VALUE);
      ASSERT_OK(user.request(free_order, address));
    }
    EXPECT_OK(user.request(order::pool_destroy, opened));
    EXPECT_OK(maker.request(order::pool_trim, pool.handle)) << "its creator may";
    // The exporter's memory is unchanged.
    EXPECT_EQ(wrong_bytes_at(maker, first.address, small, 0xd4), 0U);
    EXPECT_EQ(wrong_bytes_at(maker, second.address, small, 0xd5), 0U);
  }
}

TEST_F(driver_facts, D5_pool_outlives_killed_exporter) {
  agent maker;
  agent user;
  const exported_pool pool(maker);
  const exported_pointer first(maker, pool, 0xd6);
  const exported_pointer second(maker, pool, 0xd7);
  const std::uint64_t opened = open_pool(user, pool.fd);
  const std::uint64_t address = take(user, opened, first);
  maker.kill();
  EXPECT_EQ(wrong_bytes_at(user, address, small, 0xd6), 0U);
  EXPECT_EQ(wrong_bytes_at(user, take(user, opened, second), small, 0xd7), 0U);
  // A later importer can also open it by the descriptor that this process keeps open.
  agent late;
  const std::uint64_t late_pool = open_pool(late, pool.fd);
  EXPECT_EQ(wrong_bytes_at(late, take(late, late_pool, first), small, 0xd6), 0U);
  EXPECT_EQ(wrong_bytes_at(late, take(late, late_pool, second), small, 0xd7), 0U);
}

TEST_F(driver_facts, D5_dead_exporters_memory_is_freed_by_last_importer) {
  agent watcher;
  // Before the first measurement, because its context uses memory too.
  agent user;
  const std::uint64_t before = watcher.request(order::free_memory).value;
  if (before < 2 * gib) {
    GTEST_SKIP() << "needs 2 GiB of free device memory";
  }
  auto maker = std::make_unique<agent>();
  exported_pool pool(*maker);
  const exported_pointer memory(*maker, pool, 0xd8, gib);
  const std::uint64_t opened = open_pool(user, pool.fd);
  const std::uint64_t address = take(user, opened, memory);
  maker->kill();
  pool.fd.reset();
  EXPECT_EQ(wrong_bytes_at(user, address, gib, 0xd8), 0U);
  EXPECT_LE(watcher.request(order::free_memory).value + gib * 9 / 10, before);
  ASSERT_OK(user.request(order::pool_free, address));
  ASSERT_OK(user.request(order::pool_destroy, opened));
  EXPECT_TRUE(
      eventually([&] { return watcher.request(order::free_memory).value + gib / 10 >= before; }));
}

TEST_F(driver_facts, D6_freed_memory_keeps_contents_until_reallocated) {
  agent maker;
  agent user;
  const exported_pool pool(maker);
  // Keeps the block that contains both: a completely free block is returned to the driver, and the
  // next allocation at the same address is then other memory.
  const exported_pointer neighbour(maker, pool, 0x11);
  const exported_pointer memory(maker, pool, 0xd9);
  const std::uint64_t address = take(user, open_pool(user, pool.fd), memory);
  ASSERT_OK(maker.request(order::pool_free, memory.address));
  EXPECT_EQ(wrong_bytes_at(user, address, small, 0xd9), 0U) << "freed";
  ASSERT_NO_FATAL_FAILURE(reallocate(maker, pool, memory.address, 0xda));
  EXPECT_EQ(wrong_bytes_at(user, address, small, 0xda), 0U) << "reallocated";
  // The old memory's export data now refers to the new memory.
  agent late;
  EXPECT_EQ(wrong_bytes_at(late, take(late, open_pool(late, pool.fd), memory), small, 0xda), 0U);
}

TEST_F(driver_facts, D6_freed_memory_keeps_contents_after_pool_destruction) {
  agent maker;
  agent user;
  const exported_pool pool(maker);
  const exported_pointer memory(maker, pool, 0xdb);
  const std::uint64_t address = take(user, open_pool(user, pool.fd), memory);
  ASSERT_OK(maker.request(order::pool_free, memory.address));
  ASSERT_OK(maker.request(order::pool_trim, pool.handle));
  EXPECT_EQ(wrong_bytes_at(user, address, small, 0xdb), 0U) << "trimmed";
  ASSERT_OK(maker.request(order::pool_destroy, pool.handle));
  EXPECT_EQ(wrong_bytes_at(user, address, small, 0xdb), 0U) << "destroyed";
}

TEST_F(driver_facts, D7_modified_export_data_crashes) {
  if (!on_fake_driver()) {
    GTEST_SKIP() << "undefined behaviour in the real driver";
  }
  agent maker;
  agent user;
  const exported_pool pool(maker);
  exported_pointer memory(maker, pool, 0xdc);
  const std::uint64_t opened = open_pool(user, pool.fd);
  memory.data.bytes[0] = static_cast<char>(memory.data.bytes[0] ^ 0x55);
  ASSERT_THROW(user.request(order::pool_take_wrong, opened, 0, memory.data.bytes),
               std::runtime_error);
  const int status = user.wait();
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGSEGV);
}

}  // namespace
}  // namespace gpushm::conformance
