// SPDX-License-Identifier: Apache-2.0
// Each case is one row of the measured behaviour of the driver, checked on the loaded driver: the
// real one or the fake. Sizes stay small, except where freed memory is measured while others use
// the GPU.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <memory>

#include "tests/conformance/driver_facts_fixture.hpp"

namespace gpushm::conformance {
namespace {

using namespace gpushm::cuda;

TEST_F(driver_facts, I1_handle_carries_exporters_pid_at_offset_8) {
  agent maker;
  const answer handle = create_handle(maker, 0x11);
  EXPECT_EQ(pid_in(handle.bytes), maker.pid());
}

TEST_F(driver_facts, I1_pid_is_that_of_the_exporters_own_namespace) {
  if (const std::string why = namespace_skip_reason(); !why.empty()) {
    GTEST_SKIP() << why;
  }
  agent_options options;
  options.own_pid_namespace = true;
  agent maker(options);
  ASSERT_OK(maker.started());
  EXPECT_EQ(maker.started().value, 1U);
  EXPECT_EQ(pid_in(create_handle(maker, 0x12).bytes), 1);
}

TEST_F(driver_facts, I2_equal_pid_is_rejected_and_other_pid_is_not) {
  agent maker;
  agent user;
  answer handle = create_handle(maker, 0x21);
  put_pid(handle.bytes, static_cast<std::int32_t>(user.started().value));
  EXPECT_EQ(user.request(order::open_handle, small, 0, handle.bytes).result,
            CUDA_ERROR_INVALID_CONTEXT);
  put_pid(handle.bytes, static_cast<std::int32_t>(maker.started().value));
  ASSERT_OK(user.request(order::open_handle, small, 0, handle.bytes));
  EXPECT_EQ(user.request(order::check, 0x21).value, 0U);
}

TEST_F(driver_facts, I2_two_first_processes_of_two_pid_namespaces_collide) {
  if (const std::string why = namespace_skip_reason(); !why.empty()) {
    GTEST_SKIP() << why;
  }
  agent_options options;
  options.own_pid_namespace = true;
  agent maker(options);
  agent user(options);
  answer handle = create_handle(maker, 0x22);
  EXPECT_EQ(user.request(order::open_handle, small, 0, handle.bytes).result,
            CUDA_ERROR_INVALID_CONTEXT);
  put_pid(handle.bytes, 2);
  ASSERT_OK(user.request(order::open_handle, small, 0, handle.bytes));
  EXPECT_EQ(user.request(order::check, 0x22).value, 0U);
}

TEST_F(driver_facts, I3_any_other_pid_opens_the_right_memory) {
  agent maker;
  agent user;
  answer handle = create_handle(maker, 0x31);
  for (const std::int32_t pid : {0, 2, 12345678, -1}) {
    put_pid(handle.bytes, pid);
    ASSERT_OK(user.request(order::open_handle, small, 0, handle.bytes)) << pid;
    EXPECT_EQ(user.request(order::check, 0x31).value, 0U) << pid;
    EXPECT_OK(user.request(order::close_handle));
  }
}

TEST_F(driver_facts, I3_same_process_opens_a_rewritten_handle) {
  agent maker;
  answer handle = create_handle(maker, 0x32);
  EXPECT_EQ(maker.request(order::open_handle, small, 0, handle.bytes).result,
            CUDA_ERROR_INVALID_CONTEXT);
  put_pid(handle.bytes, 12345678);
  ASSERT_OK(maker.request(order::open_handle, small, 0, handle.bytes));
  EXPECT_EQ(maker.request(order::check, 0x32).value, 0U);
}

TEST_F(driver_facts, I3_handle_of_an_interior_pointer_opens_the_base) {
  agent maker;
  agent user;
  ASSERT_OK(maker.request(order::alloc, small));
  ASSERT_OK(maker.request(order::fill, 0x33));
  ASSERT_OK(maker.request(order::write_word, 0x33333334));
  const answer handle = maker.request(order::get_handle, mib);
  ASSERT_OK(handle);
  ASSERT_OK(user.request(order::open_handle, small, 0, handle.bytes));
  // Only the first byte of the first word differs from the fill.
  EXPECT_EQ(user.request(order::check, 0x33).value, 1U);
}

TEST_F(driver_facts, I5_gpu_hidden_by_cuda_visible_devices_imports) {
  if (!peers_) {
    GTEST_SKIP() << "needs two GPUs that are peers";
  }
  agent maker;
  agent_options hidden;
  hidden.environment = {{"CUDA_VISIBLE_DEVICES", "1"}};
  agent user(hidden);
  ASSERT_OK(user.started());
  EXPECT_EQ(user.started().value2, 1U);
  const base::unique_fd fd = create_chunk(maker, 0x51);
  const answer imported = user.request(order::import_chunk, small, 0, nullptr, fd.get());
  ASSERT_OK(imported);
  EXPECT_EQ(static_cast<std::int64_t>(imported.value), device_invalid);
  ASSERT_OK(user.request(order::map_imported, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, 0));
  EXPECT_EQ(user.request(order::check, 0x51).value, 0U);

  agent opener(hidden);
  const answer handle = create_handle(maker, 0x52);
  ASSERT_OK(opener.request(order::open_handle, small, 0, handle.bytes));
  EXPECT_EQ(opener.request(order::check, 0x52).value, 0U);
}

TEST_F(driver_facts, I6_chunks_travel_as_descriptors) {
  agent maker;
  agent user;
  const base::unique_fd fd = create_chunk(maker, 0x61);
  import_and_map(user, fd);
  EXPECT_EQ(user.request(order::check, 0x61).value, 0U);
  ASSERT_OK(user.request(order::fill, 0x62));
  EXPECT_EQ(maker.request(order::check, 0x62).value, 0U);
}

TEST_F(driver_facts, I6_chunks_travel_between_pid_namespaces) {
  if (const std::string why = namespace_skip_reason(); !why.empty()) {
    GTEST_SKIP() << why;
  }
  agent_options options;
  options.own_pid_namespace = true;
  options.own_shm = true;
  agent maker(options);
  agent user(options);
  ASSERT_OK(user.started());
  import_and_map(user, create_chunk(maker, 0x63));
  EXPECT_EQ(user.request(order::check, 0x63).value, 0U);
}

TEST_F(driver_facts, I6_several_chunks_share_one_range_and_one_set_access) {
  agent maker;
  agent user;
  ASSERT_OK(maker.request(order::create, small, 3));
  ASSERT_OK(maker.request(order::fill, 0x64));
  for (std::uint64_t chunk = 0; chunk < 3; ++chunk) {
    const answer exported = maker.request(order::export_chunk, chunk);
    ASSERT_OK(exported);
    ASSERT_OK(user.request(order::import_chunk, small, 0, nullptr, exported.fd.get()));
  }
  ASSERT_OK(user.request(order::map_imported, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, 0));
  EXPECT_EQ(user.request(order::check, 0x64).value, 0U);
  ASSERT_OK(user.request(order::unmap));
}

TEST_F(driver_facts, I6_pools_travel_as_descriptors) {
  agent maker;
  agent user;
  ASSERT_OK(maker.request(order::pool_create, small));
  ASSERT_OK(maker.request(order::fill, 0x65));
  const answer exported = maker.request(order::pool_export);
  ASSERT_OK(exported);
  ASSERT_OK(user.request(order::pool_import, small, 0, exported.bytes, exported.fd.get()));
  EXPECT_EQ(user.request(order::check, 0x65).value, 0U);
}

TEST_F(driver_facts, I6_pool_without_handle_types_is_not_exportable) {
  agent maker;
  EXPECT_EQ(maker.request(order::pool_plain).result, CUDA_ERROR_INVALID_VALUE);
}

TEST_F(driver_facts, I6_other_descriptors_are_not_chunks) {
  agent user;
  const base::unique_fd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_NE(user.request(order::import_chunk, small, 0, nullptr, null.get()).result, CUDA_SUCCESS);
  const base::unique_fd memory(::memfd_create("not-a-chunk", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(memory.get(), static_cast<off_t>(small)), 0);
  EXPECT_NE(user.request(order::import_chunk, small, 0, nullptr, memory.get()).result,
            CUDA_SUCCESS);
  EXPECT_OK(user.request(order::create, small, 1)) << "the driver must keep working";
}

TEST_F(driver_facts, I7_event_handles_need_a_shared_dev_shm) {
  if (const std::string why = namespace_skip_reason(); !why.empty()) {
    GTEST_SKIP() << why;
  }
  agent_options options;
  options.own_shm = true;
  agent user(options);
  // Another PID namespace makes the PIDs differ, so that the failure is not a PID collision.
  options.own_pid_namespace = true;
  agent maker(options);
  ASSERT_OK(user.started());
  const answer handle = maker.request(order::event_handle);
  ASSERT_OK(handle);
  EXPECT_EQ(user.request(order::event_open, 0, 0, handle.bytes).result, CUDA_ERROR_MAP_FAILED);
}

TEST_F(driver_facts, L1_descriptor_alone_keeps_memory_until_closed) {
  agent watcher;
  const std::uint64_t before = watcher.request(order::free_memory).value;
  if (before < 2 * gib) {
    GTEST_SKIP() << "needs 2 GiB of free device memory";
  }
  auto maker = std::make_unique<agent>();
  base::unique_fd fd = create_chunk(*maker, 0x71, gib);
  EXPECT_EQ(maker->end(), 0);
  // This process has not loaded the driver: it only keeps the descriptor open.
  EXPECT_LE(watcher.request(order::free_memory).value + gib * 9 / 10, before);
  {
    agent user;
    import_and_map(user, fd, CU_MEM_ACCESS_FLAGS_PROT_READ, gib);
    EXPECT_EQ(user.request(order::check, 0x71).value, 0U);
    EXPECT_EQ(user.end(), 0);
  }
  EXPECT_LE(watcher.request(order::free_memory).value + gib * 9 / 10, before);
  fd.reset();
  EXPECT_TRUE(
      eventually([&] { return watcher.request(order::free_memory).value + gib / 10 >= before; }));
}

TEST_F(driver_facts, L2_mappings_survive_sigkill_of_their_exporter) {
  agent maker;
  agent user;
  agent opener;
  base::unique_fd fd = create_chunk(maker, 0x72);
  import_and_map(user, fd);
  fd.reset();
  const answer handle = create_handle(maker, 0x73);
  ASSERT_OK(opener.request(order::open_handle, small, 0, handle.bytes));
  maker.kill();
  EXPECT_EQ(user.request(order::check, 0x72).value, 0U);
  EXPECT_EQ(opener.request(order::check, 0x73).value, 0U);
  EXPECT_OK(user.request(order::fill, 0x74));
  EXPECT_OK(opener.request(order::fill, 0x75));
  EXPECT_EQ(user.request(order::check, 0x74).value, 0U);
  EXPECT_EQ(opener.request(order::check, 0x75).value, 0U);
}

TEST_F(driver_facts, L2_handle_not_opened_dies_with_its_exporter) {
  agent maker;
  agent user;
  const answer handle = create_handle(maker, 0x76);
  maker.kill();
  EXPECT_EQ(user.request(order::open_handle, small, 0, handle.bytes).result,
            CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(driver_facts, L3_read_only_is_chosen_by_the_importer) {
  agent maker;
  agent reader;
  agent writer;
  const base::unique_fd fd = create_chunk(maker, 0x77);
  import_and_map(reader, fd, CU_MEM_ACCESS_FLAGS_PROT_READ);
  EXPECT_EQ(reader.request(order::write_word, 1).result, CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(reader.request(order::check, 0x77).value, 0U) << "rejected without effect";
  import_and_map(writer, fd, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  EXPECT_OK(writer.request(order::fill, 0x78));
  EXPECT_EQ(reader.request(order::check, 0x78).value, 0U);
}

TEST_F(driver_facts, L4_handles_may_repeat_and_buffer_ids_do_not) {
  agent maker;
  const answer first = create_handle(maker, 0x79);
  const std::uint64_t first_id = maker.request(order::buffer_id).value;
  ASSERT_OK(maker.request(order::free));
  const answer second = create_handle(maker, 0x7a);
  const std::uint64_t second_id = maker.request(order::buffer_id).value;
  EXPECT_NE(first_id, second_id);
  // The real driver repeats handles sometimes; the fake always does, so that tests cover it.
  if (on_fake_driver()) {
    EXPECT_EQ(std::memcmp(first.bytes, second.bytes, sizeof(first.bytes)), 0);
  }
}

TEST_F(driver_facts, allocation_above_device_memory_is_out_of_memory) {
  agent maker;
  const std::uint64_t total = maker.request(order::free_memory).value2;
  EXPECT_EQ(maker.request(order::create, total / small * small + small, 1).result,
            CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_F(driver_facts, stream_waits_on_registered_page_for_cpu_store) {
  constexpr std::size_t page_bytes = 4096;
  const base::unique_fd fd(::memfd_create("page", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(fd.get(), page_bytes), 0);
  void* const page = ::mmap(nullptr, page_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  ASSERT_NE(page, MAP_FAILED);
  auto* const words = static_cast<std::uint64_t*>(page);
  {
    agent waiter;
    ASSERT_OK(waiter.request(order::wait_word, 7, 0, nullptr, fd.get()));
    EXPECT_EQ(waiter.request(order::wait_done, 50).result, CUDA_ERROR_NOT_READY);
    ASSERT_OK(waiter.request(order::write_stream, 9));
    __atomic_store_n(words, 6, __ATOMIC_SEQ_CST);
    EXPECT_EQ(waiter.request(order::wait_done, 50).result, CUDA_ERROR_NOT_READY);
    EXPECT_EQ(__atomic_load_n(words + 1, __ATOMIC_SEQ_CST), 0U) << "work after the wait ran";
    __atomic_store_n(words, 7, __ATOMIC_SEQ_CST);
    EXPECT_OK(waiter.request(order::wait_done, 20'000));
    EXPECT_EQ(__atomic_load_n(words + 1, __ATOMIC_SEQ_CST), 9U);
  }
  ::munmap(page, page_bytes);
}

TEST_F(driver_facts, peer_gpu_maps_and_reads) {
  if (!peers_) {
    GTEST_SKIP() << "needs two GPUs that are peers";
  }
  agent maker;
  agent_options other;
  other.ordinal = 1;
  agent user(other);
  const base::unique_fd fd = create_chunk(maker, 0x7b);
  ASSERT_OK(user.request(order::import_chunk, small, 0, nullptr, fd.get()));
  ASSERT_OK(user.request(order::map_imported, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, 1));
  EXPECT_EQ(user.request(order::check, 0x7b).value, 0U);
}

}  // namespace
}  // namespace gpushm::conformance
