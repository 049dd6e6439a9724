// SPDX-License-Identifier: Apache-2.0
// The driver's information about existing memory: attributes of pointers (A), and retained chunks
// (B).
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "tests/conformance/driver_facts_fixture.hpp"

namespace gpushm::conformance {
namespace {

using namespace gpushm::cuda;

// Far from any mapping.
constexpr std::uint64_t never_mapped = 0x1000'0000'0000;

// The singular form rejects the address; the plural one returns zeros for the first two, and either
// leaves the two of the range unchanged, or returns the reservation.
void expect_unknown(agent& agent,
                    std::uint64_t address,
                    const std::string& subject,
                    bool reserved = false) {
  for (const auto which : plural_attributes) {
    EXPECT_EQ(attribute_in(agent, address, which).result, CUDA_ERROR_INVALID_VALUE)
        << subject << ", attribute " << which;
  }
  const answer bytes = agent.request(order::attributes, address);
  ASSERT_OK(bytes) << subject;
  for (std::size_t i = 0; i < plural_attributes.size(); ++i) {
    std::uint64_t value = 0;
    std::memcpy(&value, bytes.bytes + i * sizeof(value), sizeof(value));
    if (i < 2) {
      // The first is 4 bytes wide, so the rest of its slot is unchanged.
      EXPECT_EQ(value, i == 0 ? 0xffff'ffff'0000'0000 : 0U) << subject << ", attribute " << i;
    } else if (!reserved) {
      EXPECT_EQ(value, ~std::uint64_t{0}) << subject << ", attribute " << i;
    }
  }
}

// Creates a chunk in a reservation of twice its size; nothing is mapped in the second half.
void reserve_with_hole(agent& maker) {
  ASSERT_OK(maker.request(order::create, small, 2));
  ASSERT_OK(maker.request(order::unmap_part, address_in(maker) + small, small));
}

TEST_F(driver_facts, A1_unknown_address_is_invalid_value) {
  agent maker;
  const answer heap = maker.request(order::host_plain, small, 0);
  ASSERT_OK(heap);
  expect_unknown(maker, heap.value, "pageable memory");
  const answer memfd = maker.request(order::host_plain, small, 1);
  ASSERT_OK(memfd);
  expect_unknown(maker, memfd.value, "mapping of a memfd");
  expect_unknown(maker, 0, "null");
  expect_unknown(maker, never_mapped, "never mapped");
  ASSERT_OK(maker.request(order::alloc, small));
  const std::uint64_t freed = address_in(maker);
  EXPECT_EQ(attribute_in(maker, freed, CU_POINTER_ATTRIBUTE_MEMORY_TYPE).value,
            CU_MEMORYTYPE_DEVICE);
  ASSERT_OK(maker.request(order::free));
  expect_unknown(maker, freed, "freed");
  ASSERT_NO_FATAL_FAILURE(reserve_with_hole(maker));
  const std::uint64_t reserved = address_in(maker);
  EXPECT_EQ(attribute_in(maker, reserved, CU_POINTER_ATTRIBUTE_MEMORY_TYPE).value,
            CU_MEMORYTYPE_DEVICE);
  expect_unknown(maker, reserved + small, "reserved without memory", true);
}

TEST_F(driver_facts, A1_range_of_unknown_address_is_not_found) {
  agent maker;
  for (const std::uint64_t of_memfd : {0U, 1U}) {
    const answer plain = maker.request(order::host_plain, small, of_memfd);
    ASSERT_OK(plain);
    EXPECT_EQ(maker.request(order::address_range, plain.value).result, CUDA_ERROR_NOT_FOUND)
        << of_memfd;
  }
  ASSERT_OK(maker.request(order::alloc, small));
  const std::uint64_t address = address_in(maker);
  const answer range = maker.request(order::address_range, address + mib);
  ASSERT_OK(range);
  EXPECT_EQ(range.value, address);
  EXPECT_EQ(range.value2, small);
}

TEST_F(driver_facts, A2_attributes_need_no_current_context) {
  agent maker;
  ASSERT_OK(maker.request(order::alloc, small));
  const std::uint64_t address = address_in(maker);
  ASSERT_OK(maker.request(order::use_context, 0));
  const answer type = attribute_in(maker, address, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
  ASSERT_OK(type);
  EXPECT_EQ(type.value, CU_MEMORYTYPE_DEVICE);
  const answer start = attribute_in(maker, address + mib, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR);
  ASSERT_OK(start);
  EXPECT_EQ(start.value, address);
  expect_unknown(maker, never_mapped, "never mapped");
}

TEST_F(driver_facts, A3_buffer_id_is_new_at_reused_address) {
  agent maker;
  std::set<std::uint64_t> ids;
  std::set<std::uint64_t> addresses;
  constexpr std::size_t rounds = 8;
  for (std::size_t round = 0; round < rounds; ++round) {
    ASSERT_OK(maker.request(order::alloc, small));
    addresses.insert(address_in(maker));
    const answer id = maker.request(order::buffer_id);
    ASSERT_OK(id);
    EXPECT_NE(id.value, 0U);
    ids.insert(id.value);
    ASSERT_OK(maker.request(order::free));
  }
  EXPECT_EQ(ids.size(), rounds);
  EXPECT_LT(addresses.size(), rounds) << "no address was reused, so nothing is proven";
}

TEST_F(driver_facts, A4_allocation_range_is_exact_and_mapping_rounded) {
  agent maker;
  ASSERT_OK(maker.request(order::alloc, 5 * mib));
  const std::uint64_t address = address_in(maker);
  for (const std::uint64_t offset : {0UL, 1UL, 3 * mib, 5 * mib - 1}) {
    const std::uint64_t at = address + offset;
    EXPECT_EQ(attribute_in(maker, at, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR).value, address);
    EXPECT_EQ(attribute_in(maker, at, CU_POINTER_ATTRIBUTE_RANGE_SIZE).value, 5 * mib);
    EXPECT_EQ(attribute_in(maker, at, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR).value, address);
    EXPECT_EQ(attribute_in(maker, at, CU_POINTER_ATTRIBUTE_MAPPING_SIZE).value, 6 * mib);
  }
}

TEST_F(driver_facts, A4_vmm_range_is_reservation_and_mapping_is_chunk) {
  agent maker;
  ASSERT_OK(maker.request(order::create, small, 3));
  const std::uint64_t base = address_in(maker);
  for (std::uint64_t chunk = 0; chunk < 3; ++chunk) {
    const std::uint64_t at = base + chunk * small + 12345;
    EXPECT_EQ(attribute_in(maker, at, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR).value, base);
    EXPECT_EQ(attribute_in(maker, at, CU_POINTER_ATTRIBUTE_RANGE_SIZE).value, 3 * small);
    EXPECT_EQ(attribute_in(maker, at, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR).value,
              base + chunk * small);
    EXPECT_EQ(attribute_in(maker, at, CU_POINTER_ATTRIBUTE_MAPPING_SIZE).value, small);
  }
  // Also if only a part of the reservation has memory.
  ASSERT_OK(maker.request(order::unmap_part, base + small, 2 * small));
  EXPECT_EQ(attribute_in(maker, base, CU_POINTER_ATTRIBUTE_RANGE_SIZE).value, 3 * small);
}

struct pointer_attributes {
  std::uint64_t address;
  CUmemorytype type;
  std::uint64_t legacy;
  std::uint64_t handle_types;
  std::uint64_t pool;
};

void expect_attributes(agent& agent,
                       const pointer_attributes& attributes,
                       const std::string& subject) {
  const auto expect = [&](CUpointer_attribute attribute, std::uint64_t value) {
    const answer got = attribute_in(agent, attributes.address, attribute);
    EXPECT_OK(got) << subject << ", attribute " << attribute;
    EXPECT_EQ(got.value, value) << subject << ", attribute " << attribute;
  };
  expect(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, attributes.type);
  expect(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, attributes.legacy);
  expect(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, attributes.handle_types);
  expect(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, attributes.pool);
}

TEST_F(driver_facts, A5_attributes_of_exportable_memory) {
  agent maker;
  ASSERT_OK(maker.request(order::alloc, small));
  expect_attributes(maker, {address_in(maker), CU_MEMORYTYPE_DEVICE, 1, 0, 0}, "cuMemAlloc");
  ASSERT_OK(maker.request(order::create, small, 1));
  expect_attributes(maker, {address_in(maker), CU_MEMORYTYPE_DEVICE, 0, 1, 0}, "exportable VMM");
  const answer plain = maker.request(order::create_plain, small);
  ASSERT_OK(plain);
  expect_attributes(maker, {plain.value, CU_MEMORYTYPE_DEVICE, 0, 0, 0}, "VMM without handles");
  const answer by_default = maker.request(order::default_alloc, small);
  ASSERT_OK(by_default);
  ASSERT_NE(by_default.value2, 0U);
  expect_attributes(
      maker, {by_default.value, CU_MEMORYTYPE_DEVICE, 0, 0, by_default.value2}, "default pool");
  for (const std::uint64_t handle_types :
       {CU_MEM_HANDLE_TYPE_NONE, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR}) {
    const answer pool = maker.request(order::pool_make, handle_types);
    ASSERT_OK(pool);
    const answer memory = maker.request(order::pool_alloc, small, pool.value);
    ASSERT_OK(memory);
    expect_attributes(maker,
                      {memory.value, CU_MEMORYTYPE_DEVICE, 0, handle_types, pool.value},
                      "pool with handle types " + std::to_string(handle_types));
  }
}

TEST_F(driver_facts, A5_attributes_of_imported_memory) {
  agent maker;
  agent user;
  import_and_map(user, create_chunk(maker, 0xa5));
  expect_attributes(user, {address_in(user), CU_MEMORYTYPE_DEVICE, 0, 0, 0}, "imported VMM");
  const answer handle = create_handle(maker, 0xa6);
  ASSERT_OK(user.request(order::open_handle, small, 0, handle.bytes));
  expect_attributes(
      user, {address_in(user), CU_MEMORYTYPE_DEVICE, 0, 0, 0}, "opened legacy handle");
  const answer pool = maker.request(order::pool_make, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  ASSERT_OK(pool);
  const answer memory = maker.request(order::pool_alloc, small, pool.value);
  ASSERT_OK(memory);
  const answer fd = maker.request(order::pool_descriptor, pool.value);
  ASSERT_OK(fd);
  const answer data = maker.request(order::pool_pointer, memory.value);
  ASSERT_OK(data);
  const answer opened = user.request(order::pool_open, 0, 0, nullptr, fd.fd.get());
  ASSERT_OK(opened);
  const answer taken = user.request(order::pool_take, opened.value, 0, data.bytes);
  ASSERT_OK(taken);
  expect_attributes(user, {taken.value, CU_MEMORYTYPE_DEVICE, 0, 0, opened.value}, "imported pool");
}

TEST_F(driver_facts, A6_pinned_memory_is_host_memory_and_not_exportable) {
  agent maker;
  const answer pinned = maker.request(order::host_alloc, small);
  ASSERT_OK(pinned);
  expect_attributes(maker, {pinned.value, CU_MEMORYTYPE_HOST, 0, 0, 0}, "cuMemHostAlloc");
  ASSERT_OK(maker.request(order::host_free, pinned.value));
  const answer plain = maker.request(order::host_plain, small, 1);
  ASSERT_OK(plain);
  ASSERT_OK(maker.request(order::host_register, plain.value, small));
  expect_attributes(maker, {plain.value, CU_MEMORYTYPE_HOST, 0, 0, 0}, "registered");
  ASSERT_OK(maker.request(order::host_unregister, plain.value));
  expect_unknown(maker, plain.value, "no longer registered");
}

TEST_F(driver_facts, B1_interior_pointer_retains_its_chunk) {
  agent maker;
  ASSERT_OK(maker.request(order::create, small, 3));
  const std::uint64_t base = address_in(maker);
  for (std::uint64_t chunk = 0; chunk < 3; ++chunk) {
    fill_at(maker, base + chunk * small, small, 0xb1 + static_cast<int>(chunk));
  }
  for (std::uint64_t chunk = 0; chunk < 3; ++chunk) {
    // The last one without a current context.
    const answer retained =
        maker.request(order::retain_chunk, base + chunk * small + mib + 12345, chunk == 2 ? 1 : 0);
    ASSERT_OK(retained);
    EXPECT_EQ(retained.value, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    ASSERT_EQ(retained.value2, CUDA_SUCCESS);
    agent user;
    import_and_map(user, retained.fd);
    EXPECT_EQ(user.request(order::check, 0xb1 + chunk).value, 0U) << chunk;
  }
}

TEST_F(driver_facts, B2_only_vmm_memory_is_retained) {
  agent maker;
  ASSERT_OK(maker.request(order::alloc, small));
  EXPECT_EQ(maker.request(order::retain_chunk, address_in(maker)).result, CUDA_ERROR_INVALID_VALUE);
  for (const std::uint64_t handle_types :
       {CU_MEM_HANDLE_TYPE_NONE, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR}) {
    const answer pool = maker.request(order::pool_make, handle_types);
    ASSERT_OK(pool);
    const answer memory = maker.request(order::pool_alloc, small, pool.value);
    ASSERT_OK(memory);
    EXPECT_EQ(maker.request(order::retain_chunk, memory.value).result, CUDA_ERROR_INVALID_VALUE)
        << handle_types;
  }
}

TEST_F(driver_facts, B3_imported_chunk_is_retained_but_not_exportable) {
  agent maker;
  agent user;
  import_and_map(user, create_chunk(maker, 0xb3));
  const answer retained = user.request(order::retain_chunk, address_in(user));
  ASSERT_OK(retained);
  EXPECT_EQ(retained.value, CU_MEM_HANDLE_TYPE_NONE);
  EXPECT_EQ(retained.value2, CUDA_ERROR_INVALID_VALUE);
  EXPECT_FALSE(retained.fd);
  EXPECT_EQ(user.request(order::check, 0xb3).value, 0U);
}

// For each interface that the dead process used, and each that the new one uses.
TEST_F(driver_facts, L7_fresh_memory_has_no_data_of_dead_process) {
  const std::uint64_t checked_bytes = on_fake_driver() ? 16 * mib : gib;
  for (const auto kind : {order::create, order::alloc, order::pool_alloc}) {
    {
      agent dying;
      const answer room = dying.request(order::free_memory);
      ASSERT_OK(room);
      // Nearly all free memory, so that the next allocations reuse the dead process's memory.
      const std::uint64_t bytes = on_fake_driver() ? 256 * mib : (room.value - gib) / small * small;
      std::uint64_t address = 0;
      if (kind == order::pool_alloc) {
        const answer pool =
            dying.request(order::pool_make, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
        ASSERT_OK(pool);
        const answer memory = dying.request(order::pool_alloc, bytes, pool.value);
        ASSERT_OK(memory);
        address = memory.value;
      } else {
        ASSERT_OK(dying.request(kind, bytes, 1));
        address = address_in(dying);
      }
      fill_at(dying, address, bytes, 0xd7);
      EXPECT_EQ(wrong_bytes_at(dying, address, checked_bytes, 0xd7), 0U);
      dying.kill();
    }
    agent fresh;
    ASSERT_OK(fresh.request(order::create, checked_bytes, 1));
    EXPECT_EQ(wrong_bytes_at(fresh, address_in(fresh), checked_bytes, 0), 0U) << "virtual memory";
    agent other;
    ASSERT_OK(other.request(order::alloc, checked_bytes));
    EXPECT_EQ(wrong_bytes_at(other, address_in(other), checked_bytes, 0), 0U) << "cuMemAlloc";
    const answer pool = other.request(order::pool_make, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    ASSERT_OK(pool);
    const answer memory = other.request(order::pool_alloc, checked_bytes, pool.value);
    ASSERT_OK(memory);
    EXPECT_EQ(wrong_bytes_at(other, memory.value, checked_bytes, 0), 0U) << "a pool";
  }
}

}  // namespace
}  // namespace gpushm::conformance
