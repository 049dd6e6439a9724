// SPDX-License-Identifier: Apache-2.0
// Legacy handles of existing memory (C).
#include <gtest/gtest.h>

#include "tests/conformance/driver_facts_fixture.hpp"

namespace gpushm::conformance {
namespace {

using namespace gpushm::cuda;

// Opens `handle` and returns the address.
std::uint64_t opened_at(agent& user, const answer& handle) {
  EXPECT_OK(user.request(order::open_handle, small, 0, handle.bytes));
  return address_in(user);
}

void close_at(agent& user, std::uint64_t address) {
  ASSERT_OK(user.request(order::select, address, small));
  ASSERT_OK(user.request(order::close_handle));
}

TEST_F(driver_facts, C1_handle_needs_current_context) {
  agent maker;
  ASSERT_OK(maker.request(order::alloc, small));
  ASSERT_OK(maker.request(order::use_context, 0));
  EXPECT_EQ(maker.request(order::get_handle, 0).result, CUDA_ERROR_INVALID_CONTEXT);
  ASSERT_OK(maker.request(order::use_context, 1));
  EXPECT_OK(maker.request(order::get_handle, 0));
}

TEST_F(driver_facts, C2_only_cuMemAlloc_memory_has_handle) {
  agent maker;
  const answer handle = create_handle(maker, 0xc2);
  ASSERT_OK(maker.request(order::create, small, 1));
  EXPECT_EQ(maker.request(order::get_handle, 0).result, CUDA_ERROR_INVALID_VALUE);
  for (const std::uint64_t handle_types :
       {CU_MEM_HANDLE_TYPE_NONE, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR}) {
    const answer pool = maker.request(order::pool_make, handle_types);
    ASSERT_OK(pool);
    const answer memory = maker.request(order::pool_alloc, small, pool.value);
    ASSERT_OK(memory);
    ASSERT_OK(maker.request(order::select, memory.value, small));
    EXPECT_EQ(maker.request(order::get_handle, 0).result, CUDA_ERROR_INVALID_VALUE) << handle_types;
  }
  agent user;
  opened_at(user, handle);
  EXPECT_EQ(user.request(order::get_handle, 0).result, CUDA_ERROR_INVALID_VALUE)
      << "of an opened one";
}

TEST_F(driver_facts, C3_opens_of_handle_share_counted_mapping) {
  agent maker;
  agent user;
  answer handle = create_handle(maker, 0xc3);
  const std::uint64_t address = opened_at(user, handle);
  EXPECT_EQ(opened_at(user, handle), address);
  put_pid(handle.bytes, 12345678);
  EXPECT_EQ(opened_at(user, handle), address);
  for (int closes = 0; closes < 3; ++closes) {
    EXPECT_EQ(wrong_bytes_at(user, address, small, 0xc3), 0U) << closes;
    ASSERT_OK(user.request(order::close_handle));
  }
  EXPECT_EQ(attribute_in(user, address, CU_POINTER_ATTRIBUTE_MEMORY_TYPE).result,
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(driver_facts, C4_mapping_keeps_memory_freed_by_exporter) {
  agent maker;
  agent user;
  const answer first = create_handle(maker, 0xc4);
  const std::uint64_t old_address = opened_at(user, first);
  ASSERT_OK(maker.request(order::free));
  const answer second = create_handle(maker, 0xc5);
  const std::uint64_t new_address = opened_at(user, second);
  EXPECT_NE(new_address, old_address);
  EXPECT_EQ(wrong_bytes_at(user, old_address, small, 0xc4), 0U);
  EXPECT_EQ(wrong_bytes_at(user, new_address, small, 0xc5), 0U);
}

TEST_F(driver_facts, C5_dead_exporters_handle_opens_while_open) {
  agent maker;
  agent user;
  const answer handle = create_handle(maker, 0xc6);
  const std::uint64_t address = opened_at(user, handle);
  maker.kill();
  EXPECT_EQ(opened_at(user, handle), address);
  EXPECT_EQ(wrong_bytes_at(user, address, small, 0xc6), 0U);
  close_at(user, address);
  EXPECT_EQ(wrong_bytes_at(user, address, small, 0xc6), 0U);
  close_at(user, address);
  EXPECT_EQ(user.request(order::open_handle, small, 0, handle.bytes).result,
            CUDA_ERROR_INVALID_HANDLE);
}

}  // namespace
}  // namespace gpushm::conformance
