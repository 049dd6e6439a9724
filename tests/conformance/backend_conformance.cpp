// SPDX-License-Identifier: Apache-2.0
// Guarantees of every backend, tested through the public interface and one layer below it: the same
// cases for host memory, a GPU, and a GPU's memory used from a peer. They pass on the fake driver
// and on the real one.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <optional>
#include <ostream>
#include <random>
#include <thread>
#include <utility>

#include "client/lease/chunk_stream.hpp"
#include "client/segment/client_impl.hpp"
#include "client/segment/segment_impl.hpp"
#include "gpu/driver/cuda.hpp"
#include "gpu/driver/devices.hpp"
#include "gpu/driver/owners.hpp"
#include "gpu/memory/backends/backend.hpp"
#include "gpushm/broker.hpp"
#include "gpushm/gpushm.hpp"
#include "tests/conformance/backend_fixture.hpp"
#include "tests/support/process/given_chunks.hpp"
#include "tests/support/process/proc_counters.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm {
namespace {

using gpushm_testing::count_descriptors;
using gpushm_testing::count_mappings;
using gpushm_testing::to_text;
using gpushm_testing::total;

using namespace backend_tests;

class backend_conformance : public backend_fixture {};

TEST_P(backend_conformance, written_data_is_read_at_any_offset) {
  constexpr std::uint64_t size = 5 * mib + 4321;
  segment written = producer_->create("w", make(size));
  written.fill(std::byte{0x5a});
  const auto bytes = pattern(mib + 7, 1);
  written.write(3 * mib - 5, bytes);
  written.publish();
  const segment seen = consumer_->open("w", use());
  ASSERT_EQ(seen.size_bytes(), size);
  std::vector<std::byte> got(size);
  seen.read(0, got);
  std::vector<std::byte> expected(size, std::byte{0x5a});
  std::copy(bytes.begin(), bytes.end(), expected.begin() + 3 * mib - 5);
  EXPECT_TRUE(got == expected);
  // Nothing, from any address: also behind the last byte.
  written.write(size, {});
  seen.read(size, {});
  seen.read(0, {});
}

TEST_P(backend_conformance, memory_of_any_gpu_is_copied_in) {
  segment target = producer_->create("t", make(2 * mib));
  target.fill(std::byte{0});
  const auto bytes = pattern(mib + 3, 7);
  for (std::size_t gpu = 0; gpu != visible_gpu_count(); ++gpu) {
    segment source = producer_->create("s" + std::to_string(gpu),
                                       {.size_bytes = 2 * mib, .device = std::to_string(gpu)});
    source.write(5, bytes);
    const auto* const first = static_cast<const std::byte*>(source.data()) + 5;
    target.write_from_gpu(17, first, bytes.size());
    std::vector<std::byte> got(bytes.size());
    target.read(17, got);
    EXPECT_TRUE(got == bytes) << "from GPU " << gpu;
    EXPECT_EQ(code_of([&] { target.write_from_gpu(mib, first, mib + 1); }), errc::invalid_argument);
  }
  EXPECT_THAT(code_of([&] { target.write_from_gpu(0, bytes.data(), 1); }),
              testing::AnyOf(errc::invalid_argument, errc::driver_unavailable));
  target.write_from_gpu(2 * mib, nullptr, 0);
}

TEST_P(backend_conformance, writes_are_visible_to_both_sides) {
  segment first = producer_->create("w", make(4 * mib));
  first.fill(std::byte{0});
  first.publish();
  segment second = consumer_->open("w", use(access::read_write));
  const auto first_data = pattern(100'000, 2);
  const auto second_data = pattern(100'000, 3);
  std::vector<std::byte> got(100'000);
  first.write(11, first_data);
  second.read(11, got);
  EXPECT_TRUE(got == first_data);
  second.write(3 * mib, second_data);
  first.read(3 * mib, got);
  EXPECT_TRUE(got == second_data);
}

/// Whether the driver reports that GPUDirect RDMA may use `memory`.
bool is_rdma_capable(const void* memory) {
  std::uint64_t capable = 0;  // larger than the value that the driver writes
  EXPECT_EQ(driver::cuda_driver::instance()->cuPointerGetAttribute(
                &capable,
                cuda::CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE,
                reinterpret_cast<cuda::CUdeviceptr>(memory)),
            cuda::CUDA_SUCCESS);
  return capable != 0;
}

TEST_P(backend_conformance, only_created_memory_is_rdma_capable) {
  if (!on_gpu()) {
    GTEST_SKIP() << "host memory needs no attribute";
  }
  int supported = 0;
  ASSERT_EQ(driver::cuda_driver::instance()->cuDeviceGetAttribute(
                &supported,
                cuda::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
                driver::find_device(GetParam().home).handle),
            cuda::CUDA_SUCCESS);
  segment written = producer_->create("w", make(mib));
  EXPECT_EQ(is_rdma_capable(written.data()), supported != 0);
  written.publish();
  const segment seen = consumer_->open("w", use());
  EXPECT_FALSE(is_rdma_capable(seen.data())) << "imports are never reported as capable (F3)";
}

// Libraries that query the range of an address see only the first chunk.
TEST_P(backend_conformance, segment_is_one_chunk_by_default) {
  constexpr std::uint64_t size = 256 * mib + 1;
  segment written = producer_->create("w", make(size));
  written.publish();
  EXPECT_EQ(consumer_->stat("w").chunks, 1U);
  const segment seen = consumer_->open("w", use());
  if (!on_gpu()) {
    return;
  }
  for (const segment* each : {&std::as_const(written), &seen}) {
    // The driver knows a mapping's range only in the context of a GPU that it gave access to: in
    // another one it answers CUDA_ERROR_NOT_FOUND (2x H100 and 2x H200, driver 580).
    const auto& gpu = driver::find_device(std::to_string(each->ordinal()));
    const auto context = driver::retain_primary_context(gpu.handle, "test", {});
    const driver::context_scope scope(context.get().context, "test", {});
    const auto first = reinterpret_cast<cuda::CUdeviceptr>(each->data());
    cuda::CUdeviceptr base = 0;
    std::size_t bytes = 0;
    ASSERT_EQ(
        driver::cuda_driver::instance()->cuMemGetAddressRange_v2(&base, &bytes, first + size - 1),
        cuda::CUDA_SUCCESS);
    EXPECT_EQ(base, first);
    EXPECT_GE(bytes, size);
  }
}

TEST_P(backend_conformance, several_chunks_are_one_range) {
  const std::uint64_t step = home()->granularity();
  segment written = producer_->create("w", make(5 * step - 100, step));
  const auto bytes = pattern(5 * step - 100, 4);
  written.write(0, bytes);
  written.publish();
  EXPECT_EQ(consumer_->stat("w").chunks, 5U);
  EXPECT_EQ(consumer_->stat("w").allocated_bytes, 5 * step);
  const segment seen = consumer_->open("w", use());
  std::vector<std::byte> got(bytes.size());
  seen.read(0, got);
  EXPECT_TRUE(got == bytes);
}

TEST_P(backend_conformance, four_thousand_chunks_are_one_range) {
  const std::uint64_t step = home()->granularity();
  if (on_gpu() && free_bytes() < 4100 * step) {
    GTEST_SKIP() << "4,000 chunks of " << step << " bytes do not fit on this GPU";
  }
  segment written = producer_->create("many", make(4000 * step, step));
  for (const std::uint64_t chunk : {0UL, 252UL, 253UL, 1999UL, 3999UL}) {
    written.write(chunk * step, pattern(64, static_cast<unsigned>(chunk)));
  }
  written.publish();
  const segment seen = consumer_->open("many", use());
  for (const std::uint64_t chunk : {0UL, 252UL, 253UL, 1999UL, 3999UL}) {
    std::vector<std::byte> got(64);
    seen.read(chunk * step, got);
    EXPECT_TRUE(got == pattern(64, static_cast<unsigned>(chunk))) << chunk;
  }
}

TEST_P(backend_conformance, memory_outlives_its_creator) {
  const auto bytes = pattern(mib, 5);
  {
    create_options options = make(mib);
    options.lifetime = lifetime::persistent;
    segment written = producer_->create("w", options);
    written.write(0, bytes);
    written.publish("what it is");
  }
  producer_.reset();
  const segment seen = consumer_->open("w", use());
  std::vector<std::byte> got(mib);
  seen.read(0, got);
  EXPECT_TRUE(got == bytes);
  EXPECT_EQ(seen.metadata().size(), 10U);
  consumer_->remove("w");
}

TEST_P(backend_conformance, read_only_mapping_rejects_writes) {
  segment written = producer_->create("w", make(2 * mib));
  written.fill(std::byte{42});
  written.publish();
  segment seen = consumer_->open("w", use(access::read));
  const auto bytes = pattern(100, 6);
  EXPECT_EQ(code_of([&] { seen.write(0, bytes); }), errc::invalid_argument);
  EXPECT_EQ(code_of([&] { seen.fill(std::byte{1}); }), errc::invalid_argument);
  if (on_gpu()) {
    // Below the interface's own check, the driver rejects it too.
    const auto& cu = driver::cuda_driver::instance();
    const auto& gpu = driver::find_device(GetParam().user);
    const auto context = driver::retain_primary_context(gpu.handle, "test", {});
    const driver::context_scope scope(context.get().context, "test", {});
    EXPECT_EQ(cu->cuMemcpyHtoD_v2(
                  reinterpret_cast<cuda::CUdeviceptr>(seen.data()), bytes.data(), bytes.size()),
              cuda::CUDA_ERROR_INVALID_VALUE);
  }
  std::vector<std::byte> got(100);
  written.read(0, got);
  EXPECT_TRUE(std::all_of(got.begin(), got.end(), [](std::byte b) { return b == std::byte{42}; }));
}

TEST_P(backend_conformance, too_much_memory_is_an_error_without_leaks) {
  producer_->create("warm", make(mib)).publish();
  settle();
  const auto before = count_descriptors(::getpid());
  // On the host: more than the machine has, but less than the address space.
  const std::uint64_t size = on_gpu() ? free_bytes() + (1UL << 30U) : 1UL << 47U;
  const std::uint64_t free_before = on_gpu() ? free_bytes() : 0;
  EXPECT_EQ(code_of([&] { static_cast<void>(producer_->create("w", make(size))); }),
            errc::out_of_memory);
  // Also if the first chunks fit and a later one does not.
  if (on_gpu()) {
    const std::uint64_t chunk = (free_bytes() / 4) / (2 * mib) * (2 * mib);
    EXPECT_EQ(code_of([&] { static_cast<void>(producer_->create("w", make(6 * chunk, chunk))); }),
              errc::out_of_memory);
    EXPECT_GE(free_bytes() + 64 * mib, free_before);
  }
  settle();
  EXPECT_TRUE(producer_->list().empty());
  EXPECT_TRUE(soon([&] { return total(count_descriptors(::getpid())) <= total(before); }))
      << to_text(count_descriptors(::getpid()));
}

TEST_P(backend_conformance, invalid_import_is_an_error_without_leaks) {
  const auto backend = user();
  const std::uint64_t step = home()->granularity();
  const auto import = [&](gpushm_testing::given_chunks& chunks) {
    return code_of([&] { static_cast<void>(backend->import({"w", step, access::read}, chunks)); });
  };
  gpushm_testing::given_chunks none;
  EXPECT_EQ(import(none), errc::protocol_error);
  const auto before = count_descriptors(::getpid());
  gpushm_testing::given_chunks wrong;
  wrong.add(base::unique_fd(::memfd_create("not a chunk", MFD_CLOEXEC)), step);
  EXPECT_EQ(import(wrong), on_gpu() ? errc::driver_error : errc::wrong_descriptor_kind);
  EXPECT_TRUE(soon([&] { return total(count_descriptors(::getpid())) <= total(before); }));
}

TEST_P(backend_conformance, import_has_exactly_the_announced_size) {
  const auto source = home();
  const std::uint64_t step = source->granularity();
  const auto plan = memory::plan_chunks(2 * step, step, step);
  const auto import = [&](std::uint64_t announced_bytes, std::uint32_t chunks) {
    const auto created = source->allocate("w", plan, std::chrono::steady_clock::time_point::max());
    gpushm_testing::given_chunks given;
    for (std::uint32_t i = 0; i < chunks; ++i) {
      given.add(created->export_chunk(i), step);
    }
    return user()->import({"w", announced_bytes, access::read}, given)->mapped_bytes();
  };
  EXPECT_EQ(code_of([&] { static_cast<void>(import(step, 2)); }), errc::protocol_error);
  EXPECT_EQ(code_of([&] { static_cast<void>(import(2 * step, 1)); }), errc::protocol_error);
  EXPECT_EQ(import(2 * step, 2), 2 * step);
}

/// Whether the first byte at this address of the user's device can be read. On the fake driver: a
/// real one may end all work of the context after such an access.
bool is_accessible(const void* address, bool on_gpu) {
  std::byte byte{};
  if (on_gpu) {
    return driver::cuda_driver::instance()->cuMemcpyDtoH_v2(
               &byte, reinterpret_cast<cuda::CUdeviceptr>(address), 1) == cuda::CUDA_SUCCESS;
  }
  const base::unique_fd file(::memfd_create("copy", MFD_CLOEXEC));
  return ::write(file.get(), address, 1) == 1;  // EFAULT
}

TEST_P(backend_conformance, suspended_region_is_resumed_at_its_address) {
  const bool is_fake = std::getenv("GPUSHM_FAKE_GPU_ROOT") != nullptr;
  const auto source = home();
  const std::uint64_t step = source->granularity();
  const auto bytes = pattern(2 * step, 8);
  const auto created = source->allocate(
      "w", memory::plan_chunks(3 * step, step, step), std::chrono::steady_clock::time_point::max());
  created->write(step - 50, bytes);
  std::vector<base::guarded_fd> files;
  for (std::uint32_t i = 0; i != 3; ++i) {
    files.push_back(created->export_chunk(i));
  }
  const auto chunks = [&](std::size_t count) {
    auto given = std::make_unique<gpushm_testing::given_chunks>();
    for (std::size_t i = 0; i != count; ++i) {
      given->add(base::guarded_fd(base::unique_fd(::fcntl(files.at(i).get(), F_DUPFD_CLOEXEC, 0))),
                 step);
    }
    return given;
  };
  const auto seen = user()->import({"w", 3 * step, access::read}, *chunks(3));
  std::vector<std::byte> got(bytes.size());
  const auto is_complete = [&](const memory::region& region) {
    std::fill(got.begin(), got.end(), std::byte{0});
    region.read(step - 50, got);
    return got == bytes;
  };
  for (memory::region* each : {seen.get(), static_cast<memory::region*>(created.get())}) {
    const void* const address = each->data();
    EXPECT_EQ(code_of([&] { each->resume(*chunks(3)); }), errc::invalid_argument);
    EXPECT_FALSE(each->suspended());
    each->suspend();
    each->suspend();
    EXPECT_TRUE(each->suspended());
    EXPECT_EQ(each->data(), address);
    EXPECT_EQ(each->mapped_bytes(), 3 * step);
    EXPECT_TRUE((on_gpu() && !is_fake) || !is_accessible(address, on_gpu()));
    EXPECT_EQ(code_of([&] { each->resume(*chunks(2)); }), errc::protocol_error);
    EXPECT_TRUE(each->suspended());
    // Other memory does not get the addresses.
    const auto other = source->allocate("other",
                                        memory::plan_chunks(3 * step, step, step),
                                        std::chrono::steady_clock::time_point::max());
    EXPECT_NE(other->data(), address);
    each->resume(*chunks(3));
    EXPECT_FALSE(each->suspended());
    EXPECT_EQ(each->data(), address);
    EXPECT_TRUE(is_complete(*each));
  }
  const auto unused = user()->import({"w", 3 * step, access::read}, *chunks(3));
  unused->suspend();  // ends suspended
}

TEST_P(backend_conformance, suspended_segment_stays_with_its_users) {
  const std::uint64_t step = home()->granularity();
  create_options options = make(3 * step, step);
  options.lifetime = lifetime::persistent;
  segment written = producer_->create("w", options);
  const auto bytes = pattern(3 * step, 9);
  written.write(0, bytes);
  written.publish();
  const auto reader = std::make_shared<client_detail::client_impl>(
      connect_options{.socket_path = options_.socket_path});
  auto first = reader->open("w", use());
  // As DLPack capsules, tensors and what find_memory returns do.
  const client_detail::segment_ptr owner(gpushm_segment_dup(first.get()));
  const void* const address = gpushm_segment_data(owner.get());
  first->region().suspend();
  for (const gpushm_segment* each : {first.get(), owner.get()}) {
    EXPECT_EQ(gpushm_segment_current_state(each), GPUSHM_SEGMENT_SUSPENDED);
    EXPECT_EQ(gpushm_segment_data(each), address);
  }
  std::vector<std::byte> got(bytes.size());
  EXPECT_EQ(gpushm_segment_read(owner.get(), 0, got.data(), got.size()),
            GPUSHM_ERRC_INVALID_ARGUMENT);
  EXPECT_EQ(reader->open("w", use())->region().data(), address) << "one mapping for all";
  first.reset();
  consumer_->remove("w");
  EXPECT_EQ(gpushm_segment_current_state(owner.get()), GPUSHM_SEGMENT_SUSPENDED) << "not ended";
  EXPECT_EQ(written.state(), segment_state::removed);

  client_detail::chunk_stream chunks(owner->mapped().shared_lease(), {}, std::chrono::seconds(60));
  owner->region().resume(chunks);
  EXPECT_EQ(gpushm_segment_current_state(owner.get()), GPUSHM_SEGMENT_REMOVED);
  EXPECT_EQ(gpushm_segment_data(owner.get()), address);
  EXPECT_EQ(gpushm_segment_read(owner.get(), 0, got.data(), got.size()), GPUSHM_OK);
  EXPECT_TRUE(got == bytes);
}

TEST_P(backend_conformance, suspended_segment_is_not_cached) {
  create_options options = make(mib);
  options.lifetime = lifetime::persistent;
  producer_->create("w", options).publish();
  const auto reader = std::make_shared<client_detail::client_impl>(
      connect_options{.socket_path = options_.socket_path});
  static_cast<void>(reader->open("w", use()));
  EXPECT_EQ(reader->leases().stats().kept_entries, 1U);
  reader->open("w", use())->region().suspend();
  EXPECT_EQ(reader->leases().stats().kept_entries, 0U);
  consumer_->remove("w");
}

TEST_P(backend_conformance, memory_is_freed_after_last_lease) {
  if (!on_gpu()) {
    GTEST_SKIP() << "free host memory is not exact; descriptors are counted in the next case";
  }
  producer_->create("warm", make(mib)).publish();
  settle();
  const std::uint64_t before = free_bytes();
  const std::uint64_t size =
      std::min<std::uint64_t>(1UL << 30U, before / 2 / (2 * mib) * (2 * mib));
  {
    segment written = producer_->create("w", make(size));
    written.publish();
    const segment seen = consumer_->open("w", use());
    EXPECT_LE(free_bytes() + size, before + 64 * mib);
  }
  settle();
  EXPECT_EQ(code_of([&] { static_cast<void>(consumer_->stat("w")); }), errc::no_such_segment);
  EXPECT_TRUE(soon([&] { return free_bytes() + 64 * mib >= before; }))
      << free_bytes() << " bytes are free, " << before << " were";
}

TEST_P(backend_conformance, rounds_leak_neither_descriptors_nor_mappings) {
  const auto round = [&] {
    segment written = producer_->create("w", make(2 * mib, home()->granularity()));
    written.publish();
    const segment seen = consumer_->open("w", use());
    written.reset();
  };
  for (int i = 0; i < 3; ++i) {
    round();
    settle();
    ASSERT_TRUE(consumer_->list("w").empty());
  }
  std::size_t descriptors = total(count_descriptors(::getpid()));
  static_cast<void>(soon([&] {  // the last round's files are closed by now or soon
    const std::size_t now = total(count_descriptors(::getpid()));
    return std::exchange(descriptors, now) == now;
  }));
  const std::size_t mappings = count_mappings(::getpid(), "");
  for (int i = 0; i < 50; ++i) {
    round();
    settle();
    ASSERT_TRUE(consumer_->list("w").empty());
  }
  EXPECT_TRUE(soon([&] { return total(count_descriptors(::getpid())) <= descriptors; }))
      << to_text(count_descriptors(::getpid()));
  EXPECT_LE(count_mappings(::getpid(), ""), mappings + 5);
}

TEST_P(backend_conformance, device_is_selected_by_ordinal_or_uuid) {
  if (!on_gpu()) {
    GTEST_SKIP() << "the host has one name";
  }
  const std::string uuid = driver::visible_gpus().front().id.uuid;
  create_options options = make(mib);
  options.device = uuid;
  const segment written = producer_->create("w", options);
  EXPECT_EQ(written.device().uuid, uuid);
  EXPECT_EQ(written.backend(), backend::cuda_vmm);
  options.device = "GPU-00000000-dead-beef-0000-000000000000";
  EXPECT_EQ(code_of([&] { static_cast<void>(producer_->create("x", options)); }),
            errc::device_not_found);
}

TEST_P(backend_conformance, ranges_outside_segment_are_rejected) {
  segment written = producer_->create("w", make(100));
  std::vector<std::byte> bytes(50);
  EXPECT_EQ(code_of([&] { written.write(51, bytes); }), errc::invalid_argument);
  EXPECT_EQ(code_of([&] { written.read(UINT64_MAX, bytes); }), errc::invalid_argument);
  written.write(50, bytes);
}

INSTANTIATE_TEST_SUITE_P(, backend_conformance, all_places(), [](const auto& test) {
  return test.param.name;
});

}  // namespace
}  // namespace gpushm
