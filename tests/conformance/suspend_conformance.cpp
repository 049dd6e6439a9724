// SPDX-License-Identifier: Apache-2.0
// Segments that a process unmaps for a time: the same cases for host memory, a GPU, and a GPU's
// memory used from a peer. They pass on the fake driver and on the real one.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gpu/driver/cuda.hpp"
#include "gpu/driver/devices.hpp"
#include "gpu/driver/owners.hpp"
#include "gpushm/gpushm.hpp"
#include "tests/conformance/backend_fixture.hpp"
#include "tests/support/process/proc_counters.hpp"

namespace gpushm {
namespace {

using namespace backend_tests;
using gpushm_testing::count_descriptors;
using gpushm_testing::count_mappings;
using gpushm_testing::to_text;
using gpushm_testing::total;

template <typename Call>
std::string error_of(Call&& call, errc code) {
  try {
    call();
  } catch (const error& why) {
    EXPECT_EQ(why.code(), code);
    return why.what();
  }
  return "no error";
}

class suspend_conformance : public backend_fixture {
 protected:
  [[nodiscard]] static std::vector<std::byte> bytes_of(const segment& segment) {
    std::vector<std::byte> got(segment.size_bytes());
    segment.read(0, got);
    return got;
  }
  /// A segment "w" of several chunks, with contents.
  segment make_written(lifetime lifetime, std::uint64_t size_bytes = 0) {
    const std::uint64_t step = home()->granularity();
    create_options options = make(size_bytes == 0 ? 3 * step : size_bytes, step);
    options.lifetime = lifetime;
    segment written = producer_->create("w", options);
    contents_ = pattern(written.size_bytes(), 11);
    written.write(0, contents_);
    return written;
  }
  std::vector<std::byte> contents_;
};

TEST_P(suspend_conformance, kept_memory_is_resumed_at_its_address) {
  segment written = make_written(lifetime::leased);
  written.publish("text");
  const void* const address = written.data();
  const auto generation = written.generation();
  for (int round = 0; round != 2; ++round) {
    written.suspend();
    written.suspend(suspend_mode::keep);  // no effect
    EXPECT_EQ(written.state(), segment_state::suspended);
    EXPECT_EQ(written.data(), address);
    EXPECT_EQ(error_of([&] { static_cast<void>(bytes_of(written)); }, errc::invalid_argument),
              "read \"w\": the segment is suspended: no memory is mapped at its address (resume it "
              "first)");
    // Others find it as before.
    const segment seen = consumer_->open("w", use());
    EXPECT_TRUE(bytes_of(seen) == contents_);
    EXPECT_EQ(seen.generation(), generation);
    EXPECT_EQ(seen.state(), segment_state::live) << "suspended by another client only";
    EXPECT_EQ(consumer_->stat("w").leases, 2U);

    written.resume();
    EXPECT_EQ(written.state(), segment_state::live);
    EXPECT_EQ(written.data(), address);
    EXPECT_EQ(written.generation(), generation);
    EXPECT_TRUE(bytes_of(written) == contents_);
    EXPECT_EQ(error_of([&] { written.resume(); }, errc::invalid_argument),
              "resume \"w\": the memory is not suspended (call resume once after suspend)");
  }
}

TEST_P(suspend_conformance, resumed_memory_has_what_others_wrote_meanwhile) {
  segment written = make_written(lifetime::leased);
  written.publish();
  segment seen = consumer_->open("w", use());  // of its chunks this process keeps no descriptors
  seen.suspend();
  contents_ = pattern(contents_.size(), 12);
  written.write(0, contents_);
  seen.resume();
  EXPECT_TRUE(bytes_of(seen) == contents_);
  EXPECT_EQ(seen.access(), access::read);
  EXPECT_EQ(error_of([&] { seen.write(0, contents_); }, errc::invalid_argument),
            "write \"w\": the segment is mapped for reading only (open it with "
            "access::read_write)");
}

TEST_P(suspend_conformance, all_handles_of_a_mapping_are_suspended) {
  segment written = make_written(lifetime::persistent);
  written.publish();
  segment first = consumer_->open("w", use());
  const segment_view view = first.view();
  first.suspend();
  segment second = consumer_->open("w", use());
  EXPECT_EQ(second.data(), view.data());
  EXPECT_EQ(second.state(), segment_state::suspended);
  segment other = consumer_->open("w", use(access::read_write));  // another mapping
  EXPECT_EQ(other.state(), segment_state::live);
  first.reset();
  second.resume();
  EXPECT_TRUE(bytes_of(second) == contents_);
  producer_->remove("w");
}

TEST_P(suspend_conformance, memory_that_was_removed_is_resumed) {
  segment written = make_written(lifetime::leased);
  written.publish();
  segment seen = consumer_->open("w", use());
  seen.suspend();
  producer_->remove("w");
  written.reset();
  settle();
  EXPECT_EQ(seen.state(), segment_state::suspended);
  seen.resume();
  EXPECT_EQ(seen.state(), segment_state::removed);
  EXPECT_TRUE(bytes_of(seen) == contents_);
}

TEST_P(suspend_conformance, suspended_segments_end_as_others) {
  make_written(lifetime::leased).publish();  // what is loaded once
  settle();
  const auto descriptors = total(count_descriptors(::getpid()));
  const auto mappings = count_mappings(::getpid(), "");
  for (int round = 0; round != 20; ++round) {
    segment written = make_written(lifetime::leased);
    written.publish();
    segment seen = consumer_->open("w", use());
    seen.suspend();
    seen.resume();
    seen.suspend();
    if (round % 2 == 0) {
      written.suspend();
    }
    seen.reset();
    written.reset();
    settle();
    ASSERT_TRUE(consumer_->list("w").empty()) << round;
  }
  EXPECT_TRUE(soon([&] { return total(count_descriptors(::getpid())) <= descriptors; }))
      << to_text(count_descriptors(::getpid()));
  EXPECT_LE(count_mappings(::getpid(), ""), mappings + 5);
}

TEST_P(suspend_conformance, memory_is_resumed_after_its_broker_has_ended) {
  segment written = make_written(lifetime::leased);
  written.publish();
  segment seen = consumer_->open("w", use());
  written.suspend();
  seen.suspend();
  broker_.reset();
  seen.resume();
  EXPECT_EQ(seen.state(), segment_state::broker_gone);
  EXPECT_TRUE(bytes_of(seen) == contents_);
  written.resume();
  EXPECT_TRUE(bytes_of(written) == contents_);
  // Of what is not suspended yet, nobody has the descriptors any longer.
  EXPECT_EQ(code_of([&] { seen.suspend(); }), errc::broker_gone);
  EXPECT_EQ(seen.state(), segment_state::broker_gone);
  EXPECT_TRUE(bytes_of(seen) == contents_);
}

TEST_P(suspend_conformance, work_in_flight_on_the_default_stream_is_detected) {
  if (!on_gpu()) {
    GTEST_SKIP() << "no stream uses host memory by itself";
  }
  segment written = make_written(lifetime::leased);
  written.publish();
  segment seen = consumer_->open("w", use());
  const auto& gpu = driver::find_device(GetParam().user);
  const auto context = driver::retain_primary_context(gpu.handle, "test", gpu.id.uuid);
  const driver::context_scope scope(context.get().context, "test", gpu.id.uuid);
  const auto& cu = driver::cuda_driver::instance();
  cuda::CUdeviceptr word = 0;
  ASSERT_EQ(cu->cuMemAlloc_v2(&word, 8), cuda::CUDA_SUCCESS);
  const std::uint64_t zero = 0;
  ASSERT_EQ(cu->cuMemcpyHtoD_v2(word, &zero, sizeof zero), cuda::CUDA_SUCCESS);
  cuda::CUstream other = nullptr;
  ASSERT_EQ(cu->cuStreamCreate(&other, cuda::CU_STREAM_NON_BLOCKING), cuda::CUDA_SUCCESS);
  ASSERT_EQ(cu->cuStreamWaitValue64_v2(nullptr, word, 1, cuda::CU_STREAM_WAIT_VALUE_EQ),
            cuda::CUDA_SUCCESS);
  const std::string refused = error_of([&] { seen.suspend(); }, errc::in_use);
  const segment_state state = seen.state();
  EXPECT_EQ(cu->cuStreamWriteValue64_v2(other, word, 1, 0), cuda::CUDA_SUCCESS);
  EXPECT_EQ(cu->cuStreamSynchronize(nullptr), cuda::CUDA_SUCCESS);
  EXPECT_EQ(refused,
            "suspend \"w\": the default stream of its GPU has work in flight (synchronize the "
            "streams that use the segment first)");
  EXPECT_EQ(state, segment_state::live);
  seen.suspend();
  seen.resume();
  EXPECT_TRUE(bytes_of(seen) == contents_);
  EXPECT_EQ(cu->cuStreamDestroy_v2(other), cuda::CUDA_SUCCESS);
  EXPECT_EQ(cu->cuMemFree_v2(word), cuda::CUDA_SUCCESS);
}

TEST_P(suspend_conformance, captures_are_detected_and_continue) {
  if (!on_gpu()) {
    GTEST_SKIP() << "no stream uses host memory by itself";
  }
  segment written = make_written(lifetime::leased);
  written.publish();
  segment seen = consumer_->open("w", use());
  const auto& gpu = driver::find_device(GetParam().user);
  const auto context = driver::retain_primary_context(gpu.handle, "test", gpu.id.uuid);
  const driver::context_scope scope(context.get().context, "test", gpu.id.uuid);
  const auto& cu = driver::cuda_driver::instance();
  cuda::CUstream captured = nullptr;
  ASSERT_EQ(cu->cuStreamCreate(&captured, cuda::CU_STREAM_DEFAULT), cuda::CUDA_SUCCESS);
  ASSERT_EQ(cu->cuStreamBeginCapture_v2(captured, cuda::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
            cuda::CUDA_SUCCESS);
  EXPECT_EQ(
      error_of([&] { seen.suspend(); }, errc::in_use),
      "suspend \"w\": a stream of its GPU is captured for a graph (finish the capture first)");
  EXPECT_EQ(seen.state(), segment_state::live);
  cuda::CUgraph graph = nullptr;
  EXPECT_EQ(cu->cuStreamEndCapture(captured, &graph), cuda::CUDA_SUCCESS);
  EXPECT_EQ(cu->cuGraphDestroy(graph), cuda::CUDA_SUCCESS);
  EXPECT_EQ(cu->cuStreamDestroy_v2(captured), cuda::CUDA_SUCCESS);
  seen.suspend();
  seen.resume();
  EXPECT_TRUE(bytes_of(seen) == contents_);
}

TEST_P(suspend_conformance, other_kinds_of_memory_are_refused) {
  if (!on_gpu()) {
    GTEST_SKIP() << "all host segments are memfds";
  }
  const auto& gpu = driver::find_device(GetParam().home);
  const auto context = driver::retain_primary_context(gpu.handle, "test", gpu.id.uuid);
  const driver::context_scope scope(context.get().context, "test", gpu.id.uuid);
  const auto& cu = driver::cuda_driver::instance();
  cuda::CUdeviceptr memory = 0;
  ASSERT_EQ(cu->cuMemAlloc_v2(&memory, 2 * mib), cuda::CUDA_SUCCESS);
  {
    auto* const first = reinterpret_cast<void*>(  // NOLINT(performance-no-int-to-ptr): of CUDA
        static_cast<std::uintptr_t>(memory));
    segment shared = producer_->share("s", first, 2 * mib);
    EXPECT_EQ(error_of([&] { shared.suspend(); }, errc::not_supported),
              "suspend \"s\": memory of this kind cannot be unmapped and mapped again at its "
              "address (suspend segments of the backends cuda-vmm and host only)");
    EXPECT_EQ(shared.state(), segment_state::live);
    EXPECT_EQ(code_of([&] { shared.resume(); }), errc::invalid_argument);
    shared.unshare();
  }
  EXPECT_EQ(cu->cuMemFree_v2(memory), cuda::CUDA_SUCCESS);
}

INSTANTIATE_TEST_SUITE_P(, suspend_conformance, all_places(), [](const auto& test) {
  return test.param.name;
});

}  // namespace
}  // namespace gpushm
