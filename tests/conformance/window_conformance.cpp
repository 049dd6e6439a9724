// SPDX-License-Identifier: Apache-2.0
// Windows: addresses at which a process sees one segment after the other. The same cases for host
// memory, a GPU, and a GPU's memory used from a peer. They pass on the fake driver and on the real
// one; tests/client/window_failures_test.cpp lets calls of the fake one fail.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/files/unique_fd.hpp"
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
using testing::HasSubstr;

constexpr std::uint32_t chunks = 3;

class window_conformance : public backend_fixture {
 protected:
  template <typename Call>
  static std::string error_of(Call&& call, errc code) {
    try {
      call();
    } catch (const error& why) {
      EXPECT_EQ(why.code(), code);
      return why.what();
    }
    return "no error";
  }

  /// The GPU that uses the memory.
  [[nodiscard]] static const driver::gpu& user_gpu() {
    return driver::find_device(GetParam().user);
  }
  /// The memory at an address of this process, which is not of a segment.
  [[nodiscard]] std::vector<std::byte> bytes_at(const void* address, std::size_t size) const {
    std::vector<std::byte> result(size);
    if (!on_gpu()) {
      std::memcpy(result.data(), address, size);
      return result;
    }
    const auto context = driver::retain_primary_context(user_gpu().handle, "test", "");
    const driver::context_scope scope(context.get().context, "test", "");
    EXPECT_EQ(driver::cuda_driver::instance()->cuMemcpyDtoH_v2(
                  result.data(), reinterpret_cast<cuda::CUdeviceptr>(address), size),
              cuda::CUDA_SUCCESS);
    return result;
  }
  [[nodiscard]] std::vector<std::byte> bytes_of(const window& window) const {
    return bytes_at(window.data(), window.size_bytes());
  }
  [[nodiscard]] static std::vector<std::byte> contents(unsigned seed, std::uint64_t size_bytes) {
    return pattern(size_bytes, seed);
  }

  /// A published segment of several chunks with the contents of that seed.
  segment make_written(const std::string& name,
                       unsigned seed,
                       lifetime lifetime = lifetime::leased,
                       std::uint32_t chunk_count = chunks) {
    const std::uint64_t step = home()->granularity();
    create_options options = make(chunk_count * step, step);
    options.lifetime = lifetime;
    segment written = producer_->create(name, options);
    written.write(0, contents(seed, written.size_bytes()));
    written.publish(name);
    return written;
  }
  [[nodiscard]] bool shows(const window& window, unsigned seed) const {
    return window.state() != segment_state::suspended &&
           bytes_of(window) == contents(seed, window.size_bytes());
  }
};

TEST_P(window_conformance, contents_change_and_the_address_does_not) {
  const segment first = make_written("a", 1);
  const segment second = make_written("b", 2);
  const segment seen_first = consumer_->open("a", use());
  const segment seen_second = consumer_->open("b", use());
  window window(seen_first);
  const void* const address = window.data();
  EXPECT_NE(address, seen_first.data());
  EXPECT_EQ(window.size_bytes(), seen_first.size_bytes());
  EXPECT_EQ(window.ordinal(), seen_first.ordinal());
  EXPECT_EQ(window.mutable_data(), nullptr);
  EXPECT_TRUE(shows(window, 1));
  EXPECT_EQ(window.segment().name(), "a");
  for (int round = 0; round != 4; ++round) {
    window.show(seen_second);
    ASSERT_TRUE(shows(window, 2)) << round;
    EXPECT_EQ(window.segment().generation(), second.generation());
    window.show(seen_first);
    ASSERT_TRUE(shows(window, 1)) << round;
    EXPECT_EQ(window.segment().generation(), first.generation());
    ASSERT_EQ(window.data(), address);
  }
  EXPECT_EQ(window.state(), segment_state::live);
  // The segments themselves are as before.
  EXPECT_TRUE(bytes_at(seen_first.data(), 64) == bytes_at(address, 64));
  std::vector<std::byte> other(64);
  seen_second.read(0, other);
  EXPECT_FALSE(other == bytes_at(address, 64));
}

TEST_P(window_conformance, writes_of_others_are_seen_and_writes_reach_them) {
  segment first = make_written("a", 1);
  segment second = make_written("b", 2);
  const segment seen = consumer_->open("a", use());
  window reader(seen);
  reader.show(consumer_->open("b", use()));
  second.write(0, contents(3, second.size_bytes()));
  EXPECT_TRUE(shows(reader, 3));
  const segment writable = consumer_->open("b", use(access::read_write));
  const window writer(writable);
  ASSERT_EQ(writer.mutable_data(), writer.data());
  const std::vector<std::byte> written = contents(4, writer.size_bytes());
  if (on_gpu()) {
    const auto context = driver::retain_primary_context(user_gpu().handle, "test", "");
    const driver::context_scope scope(context.get().context, "test", "");
    EXPECT_EQ(driver::cuda_driver::instance()->cuMemcpyHtoD_v2(
                  reinterpret_cast<cuda::CUdeviceptr>(writer.mutable_data()),
                  written.data(),
                  written.size()),
              cuda::CUDA_SUCCESS);
  } else {
    std::memcpy(writer.mutable_data(), written.data(), written.size());
  }
  EXPECT_TRUE(shows(reader, 4));
  std::vector<std::byte> got(second.size_bytes());
  second.read(0, got);
  EXPECT_TRUE(got == written);
}

/// The creator's own segment, which it has mapped since it was allocated.
TEST_P(window_conformance, the_creator_has_windows_of_its_own_segments) {
  segment first = make_written("a", 1);
  const segment second = make_written("b", 2);
  window window(first);
  EXPECT_EQ(window.mutable_data(), window.data());
  EXPECT_TRUE(bytes_at(first.data(), 64) == bytes_at(window.data(), 64));
  window.show(second);
  first.reset();
  settle();
  EXPECT_TRUE(producer_->list("a").empty());
  EXPECT_TRUE(bytes_at(second.data(), 64) == bytes_at(window.data(), 64));
}

TEST_P(window_conformance, the_window_alone_keeps_what_it_shows) {
  make_written("a", 1, lifetime::persistent);
  make_written("b", 2, lifetime::persistent);
  consumer_.emplace(client::connect(
      {.socket_path = options_.socket_path, .cache = {.max_bytes = 0, .max_entries = 0}}));
  const auto leases = [&](const std::string& name) {
    settle();
    return producer_->stat(name).leases;
  };
  producer_->trim();
  window window(consumer_->open("a", use()));
  EXPECT_EQ(leases("a"), 1U);
  producer_->remove("a");
  EXPECT_TRUE(soon([&] { return window.state() == segment_state::removed; }));
  EXPECT_TRUE(shows(window, 1));
  window.show(consumer_->open("b", use()));
  EXPECT_EQ(leases("b"), 1U);
  EXPECT_EQ(window.state(), segment_state::live);
  EXPECT_TRUE(shows(window, 2));
  {
    const segment shown = window.segment();
    window.reset();
    EXPECT_EQ(leases("b"), 1U) << "the handle is an open of its own";
    EXPECT_EQ(shown.name(), "b");
    EXPECT_EQ(shown.metadata().size(), 1U);
  }
  EXPECT_EQ(leases("b"), 0U);
  producer_->remove("b");
}

TEST_P(window_conformance, other_layouts_change_nothing) {
  const segment first = make_written("a", 1);
  const segment smaller = make_written("smaller", 2, lifetime::leased, chunks - 1);
  const std::uint64_t step = home()->granularity();
  segment chunked = producer_->create("chunked", make(chunks * step, chunks * step));
  chunked.publish();
  segment shorter = producer_->create("shorter", make(chunks * step - 8, step));
  shorter.publish();
  window window(consumer_->open("a", use()));
  const auto refused = [&](const segment& other, errc code) {
    std::string text = error_of([&] { window.show(other); }, code);
    EXPECT_TRUE(shows(window, 1)) << text;
    EXPECT_EQ(window.segment().name(), "a");
    EXPECT_EQ(window.state(), segment_state::live);
    return text;
  };
  const std::string next_step = " (show a segment of the window's layout, or make another window)";
  EXPECT_EQ(refused(consumer_->open("smaller", use()), errc::size_mismatch),
            "show \"smaller\": it has " + std::to_string((chunks - 1) * step) +
                " bytes, and the window " + std::to_string(chunks * step) + next_step);
  EXPECT_EQ(refused(consumer_->open("chunked", use()), errc::size_mismatch),
            "show \"chunked\": it has 1 chunks, and the window 3" + next_step);
  EXPECT_EQ(refused(consumer_->open("shorter", use()), errc::size_mismatch),
            "show \"shorter\": it has " + std::to_string(chunks * step - 8) +
                " bytes, and the window " + std::to_string(chunks * step) + next_step);
  EXPECT_EQ(refused(consumer_->open("a", use(access::read_write)), errc::invalid_argument),
            "show \"a\": it is mapped for read-write, and the window for read (open it with the "
            "window's access)");
  if (GetParam().gpus > 1) {
    open_options options = use();
    options.device = std::string(GetParam().user) == "0" ? "1" : "0";
    EXPECT_THAT(refused(consumer_->open("a", options), errc::invalid_argument),
                HasSubstr("show a segment of the window's device, opened for the same device"));
  }
  if (on_gpu()) {
    segment on_host = producer_->create("host", {.size_bytes = chunks * step, .device = "host"});
    EXPECT_THAT(refused(on_host, errc::invalid_argument), HasSubstr("it is in memory of host"));
  }
  EXPECT_EQ(error_of([&] { window.show(segment()); }, errc::invalid_argument),
            "segment: this segment object is empty (open or create a segment first; a moved-from "
            "object is empty)");
  EXPECT_TRUE(shows(window, 1));
}

/// As many bytes in as many chunks, but not the same ones.
TEST_P(window_conformance, chunks_of_other_sizes_change_nothing) {
  const segment first = make_written("a", 1);
  const std::uint64_t step = home()->granularity();
  const segment two = producer_->create("two", make(4 * step, 2 * step));
  const segment uneven = producer_->create("uneven", make(4 * step, 3 * step));
  window window(two);
  EXPECT_EQ(
      error_of([&] { window.show(uneven); }, errc::size_mismatch),
      "show \"uneven\": its chunks have other sizes than those of the window (create segments "
      "for one window with the same chunk size)");
  EXPECT_EQ(window.segment().name(), "two");
  EXPECT_EQ(window.state(), segment_state::live);
}

TEST_P(window_conformance, suspended_segments_are_refused) {
  segment first = make_written("a", 1);
  segment second = make_written("b", 2);
  segment suspended = consumer_->open("b", use());
  suspended.suspend();
  window window(consumer_->open("a", use()));
  const std::string cause = "the segment is suspended: its memory may be freed (resume it first)";
  EXPECT_EQ(error_of([&] { window.show(suspended); }, errc::invalid_argument),
            "show \"b\": " + cause);
  EXPECT_EQ(error_of([&] { gpushm::window other(suspended); }, errc::invalid_argument),
            "window \"b\": " + cause);
  EXPECT_TRUE(shows(window, 1));
  suspended.resume();
  window.show(suspended);
  EXPECT_TRUE(shows(window, 2));
  // What a window shows can be suspended, but not freed.
  suspended.suspend();
  EXPECT_TRUE(shows(window, 2));
  EXPECT_EQ(window.state(), segment_state::live);
  EXPECT_EQ(window.segment().state(), segment_state::suspended) << "that mapping, not the window";
  suspended.resume();
}

TEST_P(window_conformance, memory_that_a_window_shows_is_not_freed) {
  segment written = make_written("a", 1);
  const segment other = make_written("b", 2);
  window window(written);
  for (const suspend_mode mode : {suspend_mode::host, suspend_mode::discard}) {
    EXPECT_EQ(error_of([&] { written.suspend(mode); }, errc::segment_busy),
              "suspend \"a\": this process has also opened the segment (close what it has opened, "
              "or suspend it with keep)");
    EXPECT_TRUE(shows(window, 1));
  }
  {
    segment shown = window.segment();
    written.reset();
    EXPECT_EQ(code_of([&] { shown.suspend(suspend_mode::discard); }), errc::segment_busy);
    written = std::move(shown);
  }
  EXPECT_TRUE(shows(window, 1));
  window.show(other);
  written.suspend(suspend_mode::host);
  EXPECT_EQ(code_of([&] { window.show(written); }), errc::invalid_argument);
  EXPECT_TRUE(shows(window, 2));
  written.resume();
  window.show(written);
  EXPECT_TRUE(shows(window, 1)) << "its new memory";
}

TEST_P(window_conformance, other_kinds_of_memory_are_refused) {
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
    const segment first = make_written("a", 1);
    auto* const bytes = reinterpret_cast<void*>(  // NOLINT(performance-no-int-to-ptr): of CUDA
        static_cast<std::uintptr_t>(memory));
    segment shared = producer_->share("s", bytes, 2 * mib);
    const std::string cause =
        "memory of this kind cannot be unmapped and mapped again at an address (make windows of "
        "segments of the backends cuda-vmm and host only)";
    EXPECT_EQ(error_of([&] { window other(shared); }, errc::not_supported),
              "window \"s\": " + cause);
    window window(first);
    EXPECT_EQ(error_of([&] { window.show(shared); }, errc::not_supported), "show \"s\": " + cause);
    EXPECT_EQ(window.segment().name(), "a");
    shared.unshare();
  }
  EXPECT_EQ(cu->cuMemFree_v2(memory), cuda::CUDA_SUCCESS);
}

TEST_P(window_conformance, work_in_flight_and_captures_are_detected) {
  if (!on_gpu()) {
    GTEST_SKIP() << "no stream uses host memory by itself";
  }
  const segment first = make_written("a", 1);
  const segment second = make_written("b", 2);
  window window(consumer_->open("a", use()));
  const segment next = consumer_->open("b", use());
  const auto context = driver::retain_primary_context(user_gpu().handle, "test", "");
  const driver::context_scope scope(context.get().context, "test", "");
  const auto& cu = driver::cuda_driver::instance();
  cuda::CUdeviceptr word = 0;
  ASSERT_EQ(cu->cuMemAlloc_v2(&word, 8), cuda::CUDA_SUCCESS);
  const std::uint64_t zero = 0;
  ASSERT_EQ(cu->cuMemcpyHtoD_v2(word, &zero, sizeof zero), cuda::CUDA_SUCCESS);
  cuda::CUstream other = nullptr;
  ASSERT_EQ(cu->cuStreamCreate(&other, cuda::CU_STREAM_NON_BLOCKING), cuda::CUDA_SUCCESS);
  ASSERT_EQ(cu->cuStreamWaitValue64_v2(nullptr, word, 1, cuda::CU_STREAM_WAIT_VALUE_EQ),
            cuda::CUDA_SUCCESS);
  const std::string refused = error_of([&] { window.show(next); }, errc::segment_busy);
  EXPECT_EQ(cu->cuStreamWriteValue64_v2(other, word, 1, 0), cuda::CUDA_SUCCESS);
  EXPECT_EQ(cu->cuStreamSynchronize(nullptr), cuda::CUDA_SUCCESS);
  EXPECT_EQ(refused,
            "show \"b\": the default stream of its GPU has work in flight (synchronize the streams "
            "that use the segment first)");
  EXPECT_TRUE(shows(window, 1));

  cuda::CUstream captured = nullptr;
  ASSERT_EQ(cu->cuStreamCreate(&captured, cuda::CU_STREAM_DEFAULT), cuda::CUDA_SUCCESS);
  ASSERT_EQ(cu->cuStreamBeginCapture_v2(captured, cuda::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
            cuda::CUDA_SUCCESS);
  EXPECT_EQ(error_of([&] { window.show(next); }, errc::segment_busy),
            "show \"b\": a stream of its GPU is captured for a graph (finish the capture first)");
  cuda::CUgraph graph = nullptr;
  EXPECT_EQ(cu->cuStreamEndCapture(captured, &graph), cuda::CUDA_SUCCESS);
  EXPECT_EQ(cu->cuGraphDestroy(graph), cuda::CUDA_SUCCESS);
  EXPECT_EQ(cu->cuStreamDestroy_v2(captured), cuda::CUDA_SUCCESS);
  EXPECT_TRUE(shows(window, 1));
  window.show(next);
  EXPECT_TRUE(shows(window, 2));
  EXPECT_EQ(cu->cuStreamDestroy_v2(other), cuda::CUDA_SUCCESS);
  EXPECT_EQ(cu->cuMemFree_v2(word), cuda::CUDA_SUCCESS);
}

/// What an engine does: the graph contains the window's address.
TEST_P(window_conformance, a_graph_that_was_captured_before_reads_the_new_contents) {
  if (!on_gpu()) {
    GTEST_SKIP() << "graphs are of GPUs";
  }
  const segment first = make_written("a", 1);
  const segment second = make_written("b", 2);
  window window(consumer_->open("a", use()));
  const segment next = consumer_->open("b", use());
  const segment former = consumer_->open("a", use());
  const std::uint64_t size = window.size_bytes();
  const auto context = driver::retain_primary_context(user_gpu().handle, "test", "");
  const driver::context_scope scope(context.get().context, "test", "");
  const auto& cu = driver::cuda_driver::instance();
  cuda::CUdeviceptr copy = 0;
  ASSERT_EQ(cu->cuMemAlloc_v2(&copy, size), cuda::CUDA_SUCCESS);
  cuda::CUstream stream = nullptr;
  ASSERT_EQ(cu->cuStreamCreate(&stream, cuda::CU_STREAM_NON_BLOCKING), cuda::CUDA_SUCCESS);
  ASSERT_EQ(cu->cuStreamBeginCapture_v2(stream, cuda::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
            cuda::CUDA_SUCCESS);
  ASSERT_EQ(cu->cuMemcpyDtoDAsync_v2(
                copy, reinterpret_cast<cuda::CUdeviceptr>(window.data()), size, stream),
            cuda::CUDA_SUCCESS);
  cuda::CUgraph graph = nullptr;
  ASSERT_EQ(cu->cuStreamEndCapture(stream, &graph), cuda::CUDA_SUCCESS);
  cuda::CUgraphExec executable = nullptr;
  ASSERT_EQ(cu->cuGraphInstantiateWithFlags(&executable, graph, 0), cuda::CUDA_SUCCESS);
  const auto copied = [&] {
    EXPECT_EQ(cu->cuGraphLaunch(executable, stream), cuda::CUDA_SUCCESS);
    EXPECT_EQ(cu->cuStreamSynchronize(stream), cuda::CUDA_SUCCESS);
    std::vector<std::byte> got(size);
    EXPECT_EQ(cu->cuMemcpyDtoH_v2(got.data(), copy, size), cuda::CUDA_SUCCESS);
    return got;
  };
  for (int round = 0; round != 3; ++round) {
    EXPECT_TRUE(copied() == contents(1, size)) << round;
    window.show(next);
    EXPECT_TRUE(copied() == contents(2, size)) << round;
    window.show(former);
  }
  EXPECT_EQ(cu->cuGraphExecDestroy(executable), cuda::CUDA_SUCCESS);
  EXPECT_EQ(cu->cuGraphDestroy(graph), cuda::CUDA_SUCCESS);
  EXPECT_EQ(cu->cuStreamDestroy_v2(stream), cuda::CUDA_SUCCESS);
  EXPECT_EQ(cu->cuMemFree_v2(copy), cuda::CUDA_SUCCESS);
}

TEST_P(window_conformance, a_window_outlives_its_client) {
  const segment first = make_written("a", 1);
  const segment second = make_written("b", 2);
  std::optional<client> other(connect());
  window window(other->open("a", use()));
  const segment next = other->open("b", use());
  const auto owner = window.share();
  other.reset();
  EXPECT_TRUE(shows(window, 1));
  window.show(next);
  EXPECT_TRUE(shows(window, 2));
  window.show(consumer_->open("a", use()));  // another client's
  EXPECT_TRUE(shows(window, 1));
  const void* const address = window.data();
  window.reset();
  EXPECT_EQ(window.data(), nullptr);
  EXPECT_TRUE(bytes_at(address, 64) == contents(1, 64)) << "the owner keeps it";
}

TEST_P(window_conformance, a_window_is_changed_after_its_broker_has_died) {
  const segment first = make_written("a", 1);
  const segment second = make_written("b", 2);
  window window(consumer_->open("a", use()));
  const segment lost = consumer_->open("b", use());
  broker_.reset();
  EXPECT_TRUE(soon([&] { return window.state() == segment_state::broker_gone; }));
  EXPECT_TRUE(shows(window, 1));
  // Of this segment nobody in the consumer has descriptors.
  EXPECT_EQ(code_of([&] { window.show(lost); }), errc::broker_gone);
  EXPECT_TRUE(shows(window, 1));
  broker_.emplace(broker::start(options_));
  const segment third = make_written("c", 3);
  window.show(consumer_->open("c", use()));
  EXPECT_EQ(window.state(), segment_state::live);
  EXPECT_TRUE(shows(window, 3));
}

TEST_P(window_conformance, a_thousand_changes_leave_nothing) {
  const segment first = make_written("a", 1, lifetime::persistent);
  const segment second = make_written("b", 2);
  const segment seen_first = consumer_->open("a", use());
  const segment seen_second = consumer_->open("b", use());
  const auto change = [&](window& window) {
    window.show(seen_second);
    window.show(seen_first);
  };
  {
    window warm(seen_first);  // what is loaded once
    change(warm);
  }
  settle();
  const auto descriptors = total(count_descriptors(::getpid()));
  const auto mappings = count_mappings(::getpid(), "");
  const std::uint64_t free_before = on_gpu() ? free_bytes() : 0;
  {
    window window(seen_first);
    const auto held = total(count_descriptors(::getpid()));
    EXPECT_EQ(held, descriptors + chunks);
    for (int round = 0; round != 500; ++round) {
      change(window);
    }
    EXPECT_TRUE(shows(window, 1));
    EXPECT_TRUE(soon([&] { return total(count_descriptors(::getpid())) <= held; }))
        << to_text(count_descriptors(::getpid()));
    EXPECT_LE(count_mappings(::getpid(), ""), mappings + chunks + 5);
  }
  settle();
  EXPECT_EQ(producer_->stat("a").leases, 2U);
  EXPECT_EQ(producer_->stat("b").leases, 2U);
  EXPECT_TRUE(soon([&] { return total(count_descriptors(::getpid())) <= descriptors; }))
      << to_text(count_descriptors(::getpid()));
  EXPECT_LE(count_mappings(::getpid(), ""), mappings + 5);
  if (on_gpu()) {
    EXPECT_TRUE(soon([&] { return free_bytes() >= free_before; }));
  }
  producer_->remove("a");
}

TEST_P(window_conformance, threads_change_a_window_and_read_what_it_shows) {
  const segment first = make_written("a", 1);
  const segment second = make_written("b", 2);
  const std::array<segment, 2> seen{consumer_->open("a", use()), consumer_->open("b", use())};
  window window(seen.front());
  std::atomic<bool> ended{false};
  std::atomic<int> read{0};
  std::thread reader([&] {
    while (!ended || read == 0) {
      const segment shown = window.segment();
      EXPECT_TRUE(shown.name() == "a" || shown.name() == "b");
      EXPECT_EQ(shown.state(), segment_state::live);
      const segment_state state = window.state();
      EXPECT_TRUE(state == segment_state::live || state == segment_state::suspended);
      ++read;
    }
  });
  std::vector<std::thread> changers;
  for (int changer = 0; changer != 2; ++changer) {
    changers.emplace_back([&, changer] {
      for (int round = 0; round != 100; ++round) {
        window.show(seen.at(static_cast<std::size_t>((round + changer) % 2)));
      }
    });
  }
  for (std::thread& each : changers) {
    each.join();
  }
  ended = true;
  reader.join();
  EXPECT_TRUE(shows(window, window.segment().name() == "a" ? 1 : 2));
  settle();
  EXPECT_EQ(producer_->stat("a").leases, 2U);
}

/// Uses up the descriptors of this process except for `room`.
class full_table {
 public:
  explicit full_table(std::size_t room) {
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    struct rlimit lower = before_;
    lower.rlim_cur = total(count_descriptors(::getpid())) + 512;
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &lower), 0);
    for (;;) {
      base::unique_fd next(::fcntl(0, F_DUPFD_CLOEXEC, 0));
      if (!next) {
        break;
      }
      taken_.push_back(std::move(next));
    }
    taken_.resize(taken_.size() - room);
  }
  full_table(const full_table&) = delete;
  full_table& operator=(const full_table&) = delete;
  ~full_table() { EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before_), 0); }

 private:
  struct rlimit before_ {};
  std::vector<base::unique_fd> taken_;
};

TEST_P(window_conformance, without_descriptors_it_shows_the_former_segment_or_nothing) {
  const segment first = make_written("a", 1, lifetime::persistent);
  const segment second = make_written("b", 2, lifetime::persistent);
  const segment seen_first = consumer_->open("a", use());
  const segment seen_second = consumer_->open("b", use());
  window window(seen_first);
  window.show(seen_second);  // now the leases keep their own descriptors
  window.show(seen_first);
  for (std::size_t room = 0; room != chunks; ++room) {
    std::optional<full_table> full(room);
    EXPECT_EQ(code_of([&] { window.show(seen_second); }), errc::too_many_descriptors) << room;
    full.reset();
    EXPECT_TRUE(shows(window, 1)) << room;
  }
  std::string text;
  {
    // Room for the window's descriptors, but not for one that the kernel takes to map it.
    const full_table full(chunks);
    text = error_of([&] { window.show(seen_second); }, errc::too_many_descriptors);
  }
  EXPECT_THAT(text, HasSubstr("; and the former memory could not be mapped again: "));
  EXPECT_THAT(text, HasSubstr("(nothing is mapped now: show a segment again)"));
  EXPECT_EQ(window.state(), segment_state::suspended);
  EXPECT_EQ(window.segment().name(), "a");
  window.show(window.segment());
  EXPECT_TRUE(shows(window, 1));
  window.show(seen_second);
  EXPECT_TRUE(shows(window, 2));
  producer_->remove("a");
  producer_->remove("b");
}

INSTANTIATE_TEST_SUITE_P(, window_conformance, all_places(), [](const auto& test) {
  return test.param.name;
});

}  // namespace
}  // namespace gpushm
