// SPDX-License-Identifier: Apache-2.0
// Segments that a process unmaps for a time: the same cases for host memory, a GPU, and a GPU's
// memory used from a peer. They pass on the fake driver and on the real one.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <future>
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
  const std::string refused = error_of([&] { seen.suspend(); }, errc::segment_busy);
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
      error_of([&] { seen.suspend(); }, errc::segment_busy),
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

// ---- host, discard ----

TEST_P(suspend_conformance, discarded_memory_is_free_until_it_is_resumed) {
  segment written = make_written(lifetime::leased, on_gpu() ? 64 * mib : 0);
  written.publish("text");
  const void* const address = written.data();
  const auto generation = written.generation();
  const std::uint32_t chunks = producer_->stat("w").chunks;
  const std::uint64_t free_before = on_gpu() ? free_bytes() : 0;
  const auto is_freed = [&] {
    return on_gpu() ? free_bytes() >= free_before + contents_.size()
                    : gpushm_testing::shared_memory_bytes({::getpid()}, "gpushm-chunk") == 0;
  };
  EXPECT_FALSE(is_freed());

  written.suspend(suspend_mode::discard);
  written.suspend(suspend_mode::discard);  // no effect
  EXPECT_EQ(written.state(), segment_state::suspended);
  EXPECT_EQ(written.data(), address);
  EXPECT_TRUE(soon(is_freed));
  EXPECT_EQ(code_of([&] { static_cast<void>(consumer_->stat("w")); }), errc::no_such_segment);
  EXPECT_EQ(code_of([&] { static_cast<void>(consumer_->open("w", use())); }),
            errc::no_such_segment);
  EXPECT_EQ(error_of([&] { written.suspend(); }, errc::invalid_argument),
            "suspend \"w\": the segment is suspended with discard (resume it first)");

  written.resume();
  EXPECT_EQ(written.state(), segment_state::live);
  EXPECT_EQ(written.data(), address);
  EXPECT_GT(written.generation(), generation);
  EXPECT_TRUE(written.metadata().empty());
  EXPECT_EQ(code_of([&] { static_cast<void>(consumer_->open("w", use())); }), errc::no_such_segment)
      << "not published: it has no contents";
  written.write(0, contents_);
  written.publish("other text");
  const segment seen = consumer_->open("w", use());
  EXPECT_EQ(seen.generation(), written.generation());
  EXPECT_TRUE(bytes_of(seen) == contents_);
  EXPECT_EQ(producer_->stat("w").chunks, chunks);
  EXPECT_EQ(written.metadata().size(), 10U);
}

TEST_P(suspend_conformance, contents_in_host_memory_are_resumed_and_waiting_opens_get_them) {
  segment written = make_written(lifetime::persistent);
  written.publish("text");
  const void* const address = written.data();
  const auto generation = written.generation();
  const auto metadata = written.metadata();
  for (int round = 0; round != 2; ++round) {
    written.suspend(suspend_mode::host);
    EXPECT_EQ(written.state(), segment_state::suspended);
    auto opened = std::async(std::launch::async, [&] {
      open_options options = use();
      options.timeout = std::chrono::seconds(60);
      return consumer_->open("w", options);
    });
    EXPECT_EQ(opened.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
    written.resume();
    segment seen = opened.get();
    EXPECT_EQ(written.state(), segment_state::live);
    EXPECT_EQ(written.data(), address);
    EXPECT_GT(written.generation(), generation);
    EXPECT_EQ(written.metadata().data(), metadata.data()) << "as long as the handle";
    EXPECT_EQ(seen.generation(), written.generation());
    EXPECT_EQ(seen.metadata().size(), 4U);
    EXPECT_EQ(seen.lifetime(), lifetime::persistent);
    EXPECT_TRUE(bytes_of(seen) == contents_);
    EXPECT_TRUE(bytes_of(written) == contents_);
    EXPECT_EQ(code_of([&] { written.suspend(suspend_mode::host); }), errc::segment_busy);
    EXPECT_EQ(written.state(), segment_state::live);
    contents_ = pattern(contents_.size(), 20 + static_cast<unsigned>(round));
    written.write(0, contents_);
    seen.reset();
    EXPECT_EQ(code_of([&] { written.suspend(suspend_mode::host); }), errc::segment_busy)
        << "the other client's cache has it";
    consumer_->trim();
    settle();
  }
  producer_->remove("w");
}

TEST_P(suspend_conformance, what_others_have_is_only_suspended_with_keep) {
  segment written = make_written(lifetime::leased);
  written.publish();
  const auto refused = [&](suspend_mode mode) {
    const std::string text = error_of([&] { written.suspend(mode); }, errc::segment_busy);
    EXPECT_EQ(written.state(), segment_state::live);
    EXPECT_TRUE(bytes_of(written) == contents_);
    return text;
  };
  for (const suspend_mode mode : {suspend_mode::host, suspend_mode::discard}) {
    {
      segment seen = consumer_->open("w", use(access::read_write));
      EXPECT_EQ(refused(mode),
                "suspend \"w\": 1 other connections have a lease (have them close the segment, or "
                "suspend it with keep)");
      EXPECT_EQ(error_of([&] { seen.suspend(mode); }, errc::invalid_argument),
                "suspend \"w\": another client has created this segment (suspend it with keep, or "
                "have its creator suspend it)");
      EXPECT_TRUE(bytes_of(seen) == contents_);
    }
    settle();
    open_options options = use(access::read);
    options.device = on_gpu() ? GetParam().home : "";
    {
      segment seen = producer_->open("w", options);
      EXPECT_EQ(refused(mode),
                "suspend \"w\": this process has the segment mapped for another access or device "
                "(close what it has opened, or suspend it with keep)");
      EXPECT_EQ(code_of([&] { seen.suspend(mode); }), errc::invalid_argument);
    }
    options.access = access::read_write;
    {
      const segment seen = producer_->open("w", options);
      ASSERT_EQ(seen.data(), written.data());
      EXPECT_EQ(refused(mode),
                "suspend \"w\": this process has also opened the segment (close what it has "
                "opened, or suspend it with keep)");
    }
  }
  written.suspend(suspend_mode::discard);
}

TEST_P(suspend_conformance, a_name_that_was_taken_is_an_error_that_can_be_repeated) {
  segment written = make_written(lifetime::leased);
  written.suspend(suspend_mode::host);
  const std::string text = "resume \"w\": a segment of this name ";
  {
    const segment other = consumer_->create("w", make(home()->granularity()));
    for (int attempt = 0; attempt != 2; ++attempt) {
      EXPECT_EQ(error_of([&] { written.resume(); }, errc::already_exists).substr(0, text.size()),
                text);
      EXPECT_EQ(written.state(), segment_state::suspended);
    }
  }
  settle();
  written.resume();
  EXPECT_TRUE(bytes_of(written) == contents_);
  EXPECT_EQ(code_of([&] { static_cast<void>(consumer_->open("w", use())); }), errc::no_such_segment)
      << "it was not published";
  written.publish();
  EXPECT_TRUE(bytes_of(consumer_->open("w", use())) == contents_);
}

TEST_P(suspend_conformance, without_memory_the_resume_can_be_repeated) {
  if (GetParam().gpus != 1) {
    GTEST_SKIP() << "the memory of one GPU is filled";
  }
  segment written = make_written(lifetime::leased, 64 * mib);
  written.publish("text");
  const std::uint64_t free_before = free_bytes();
  written.suspend(suspend_mode::host);
  EXPECT_TRUE(soon([&] { return free_bytes() >= free_before + 64 * mib; }));
  std::vector<segment> others;
  while (free_bytes() >= 64 * mib) {
    others.push_back(consumer_->create("other/" + std::to_string(others.size()),
                                       make((free_bytes() / mib - 32) / 2 * 2 * mib)));
  }
  for (int attempt = 0; attempt != 2; ++attempt) {
    EXPECT_EQ(code_of([&] { written.resume(); }), errc::out_of_memory);
    EXPECT_EQ(written.state(), segment_state::suspended);
    EXPECT_TRUE(producer_->list("w").empty()) << "what the resume has reserved is released";
  }
  others.clear();
  EXPECT_TRUE(soon([&] { return free_bytes() >= free_before; }));
  written.resume();
  EXPECT_TRUE(bytes_of(written) == contents_);
  EXPECT_TRUE(bytes_of(consumer_->open("w", use())) == contents_);
}

TEST_P(suspend_conformance, a_resume_finds_the_next_broker) {
  segment kept = make_written(lifetime::leased);
  kept.publish();
  kept.suspend(suspend_mode::host);
  const auto epoch = kept.epoch();
  broker_.reset();
  broker_.emplace(broker::start(options_));
  kept.resume();
  EXPECT_EQ(kept.state(), segment_state::live);
  EXPECT_NE(kept.epoch(), epoch);
  EXPECT_TRUE(bytes_of(kept) == contents_);
  EXPECT_TRUE(bytes_of(consumer_->open("w", use())) == contents_);
}

TEST_P(suspend_conformance, removed_segments_are_not_made_again) {
  segment written = make_written(lifetime::leased);
  written.publish();
  producer_->remove("w");
  for (const suspend_mode mode : {suspend_mode::host, suspend_mode::discard}) {
    EXPECT_EQ(code_of([&] { written.suspend(mode); }), errc::no_such_segment);
    EXPECT_EQ(written.state(), segment_state::removed);
    EXPECT_TRUE(bytes_of(written) == contents_);
  }
}

TEST_P(suspend_conformance, freed_segments_leave_nothing) {
  make_written(lifetime::leased).publish();  // what is loaded once
  settle();
  const auto descriptors = total(count_descriptors(::getpid()));
  const auto mappings = count_mappings(::getpid(), "");
  for (int round = 0; round != 20; ++round) {
    segment written = make_written(round % 2 == 0 ? lifetime::leased : lifetime::persistent);
    written.publish("text");
    const auto mode = round % 4 < 2 ? suspend_mode::host : suspend_mode::discard;
    written.suspend(mode);
    written.resume();
    written.suspend(mode);
    if (round % 3 == 0) {
      written.resume();
      producer_->remove("w");
    }
    written.reset();
    settle();
    ASSERT_TRUE(consumer_->list("w").empty()) << round;
  }
  EXPECT_TRUE(soon([&] { return total(count_descriptors(::getpid())) <= descriptors; }))
      << to_text(count_descriptors(::getpid()));
  EXPECT_LE(count_mappings(::getpid(), ""), mappings + 5);
}

INSTANTIATE_TEST_SUITE_P(, suspend_conformance, all_places(), [](const auto& test) {
  return test.param.name;
});

}  // namespace
}  // namespace gpushm
