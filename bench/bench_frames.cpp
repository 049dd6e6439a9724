// SPDX-License-Identifier: Apache-2.0
// What channels carry, on GPU 0, without a stream that is waited for:
//  - frames: the producer's stream copies 12 MiB into each slot, a consumer of another process
//    releases it; compared with the same copies without a channel, in turn;
//  - items: nothing is copied; one consumer, and many.
//
//   gpushm_frames [ITEMS [CONSUMERS [cpu]]]       prints a line of JSON; cpu: without streams
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "bench/bench_support.hpp"
#include "driver/cuda.hpp"
#include "driver/devices.hpp"
#include "driver/primary_context.hpp"
#include "gpushm/gpushm.hpp"

namespace gpushm::bench {
namespace {

using std::chrono::steady_clock;

constexpr std::uint64_t frame_bytes = 3'840ULL * 2'160 * 3 / 2;  // a 4K image, NV12
constexpr std::uint32_t slots = 8;
constexpr int repetitions = 3;

const driver::cuda_driver& cu() {
  return driver::cuda_driver::instance();
}
void must(cuda::CUresult result) {
  driver::cuda_driver::check(result, "bench", {}, "the driver");
}
double seconds_since(steady_clock::time_point begin) {
  return std::chrono::duration<double>(steady_clock::now() - begin).count();
}

/// A stream of GPU 0; none: the CPU.
std::optional<cuda::CUstream> make_stream(bool on_cpu) {
  if (on_cpu) {
    return std::nullopt;
  }
  must(
      cu()->cuCtxSetCurrent(driver::primary_context(driver::find_device("0").handle, "bench", {})));
  cuda::CUstream stream = nullptr;
  must(cu()->cuStreamCreate(&stream, cuda::CU_STREAM_NON_BLOCKING));
  return stream;
}

void give(int socket) {
  const char byte = 0;
  static_cast<void>(!::send(socket, &byte, 1, MSG_NOSIGNAL));
}
/// False: the other process has ended.
bool take(int socket) {
  char byte = 0;
  return ::recv(socket, &byte, 1, 0) == 1;
}

/// Reads one channel after the other, each to its end.
void consume(int socket, const std::string& broker, bool on_cpu) {
  const auto stream = make_stream(on_cpu);
  const client own = client::connect({.socket_path = broker});
  while (take(socket)) {
    auto consumer = channel_consumer::open(own, "c", {.timeout = std::chrono::seconds(20)});
    give(socket);
    for (;;) {
      const auto item = stream ? consumer.next(*stream, std::chrono::seconds(20))
                               : consumer.next(std::chrono::seconds(20));
      if (!item) {
        break;
      }
      stream ? consumer.release(*item, *stream) : consumer.release(*item);
    }
    if (stream) {
      must(cu()->cuStreamSynchronize(*stream));
    }
    consumer.reset();
    give(socket);
  }
}

class producer_side {
 public:
  producer_side(const std::string& broker,
                bool on_cpu,
                std::vector<std::unique_ptr<second_process>>& others)
      : stream_(make_stream(on_cpu)),
        client_(client::connect({.socket_path = broker})),
        others_(others) {
    if (stream_) {
      must(cu()->cuMemAlloc_v2(&source_, frame_bytes));
      must(cu()->cuMemAlloc_v2(&target_, frame_bytes * slots));
    }
  }

  /// Items a second, to `consumers` others.
  double rate(std::uint64_t items, std::uint64_t slot_bytes, std::size_t consumers, bool copies) {
    auto producer = channel_producer::create(
        client_, "c", {.slot_bytes = slot_bytes, .slots = slots, .device = stream_ ? "0" : "host"});
    for (std::size_t i = 0; i != consumers; ++i) {
      give(others_[i]->socket());
    }
    for (std::size_t i = 0; i != consumers; ++i) {
      if (!take(others_[i]->socket())) {
        throw std::runtime_error("a consumer has ended");
      }
    }
    const auto begin = steady_clock::now();
    for (std::uint64_t i = 0; i != items; ++i) {
      const auto slot = stream_ ? producer.acquire(*stream_, std::chrono::seconds(20))
                                : producer.acquire(std::chrono::seconds(20));
      if (!slot) {
        throw std::runtime_error("no slot in 20 s");
      }
      if (copies) {
        copy_to(reinterpret_cast<cuda::CUdeviceptr>(slot->data));
      }
      stream_ ? producer.publish(*stream_) : producer.publish();
    }
    if (stream_) {
      must(cu()->cuStreamSynchronize(*stream_));
    }
    const double took = seconds_since(begin);
    producer.reset();
    for (std::size_t i = 0; i != consumers; ++i) {
      static_cast<void>(take(others_[i]->socket()));
    }
    return static_cast<double>(items) / took;
  }
  /// The same copies, without a channel.
  double rate_of_copies(std::uint64_t items) {
    const auto begin = steady_clock::now();
    for (std::uint64_t i = 0; i != items; ++i) {
      copy_to(target_ + i % slots * frame_bytes);
    }
    must(cu()->cuStreamSynchronize(*stream_));
    return static_cast<double>(items) / seconds_since(begin);
  }
  [[nodiscard]] bool has_stream() const { return stream_.has_value(); }

 private:
  void copy_to(cuda::CUdeviceptr target) {
    must(cu()->cuMemcpyDtoDAsync_v2(target, source_, frame_bytes, *stream_));
  }
  std::optional<cuda::CUstream> stream_;
  client client_;
  std::vector<std::unique_ptr<second_process>>& others_;
  cuda::CUdeviceptr source_ = 0;
  cuda::CUdeviceptr target_ = 0;
};

/// Each has the sockets of those before it: the last one ends first.
struct processes {
  std::vector<std::unique_ptr<second_process>> all;
  processes() = default;
  processes(const processes&) = delete;
  processes& operator=(const processes&) = delete;
  ~processes() {
    while (!all.empty()) {
      all.pop_back();
    }
  }
};

int run(std::uint64_t items, std::size_t consumers, bool on_cpu) {
  const broker_process broker;
  processes started;
  auto& others = started.all;
  for (std::size_t i = 0; i != consumers; ++i) {
    others.push_back(std::make_unique<second_process>(
        [&](int socket) { consume(socket, broker.socket_path(), on_cpu); }));
  }
  producer_side here(broker.socket_path(), on_cpu, others);
  double frames = 0;
  double copies = 0;
  double one = 0;
  double many = 0;
  for (int i = 0; i != repetitions; ++i) {
    if (here.has_stream()) {
      const std::uint64_t few = std::max<std::uint64_t>(1, items / 10);
      copies = std::max(copies, here.rate_of_copies(few));
      frames = std::max(frames, here.rate(few, frame_bytes, 1, true));
    }
    one = std::max(one, here.rate(items, 4'096, 1, false));
    many = std::max(many, here.rate(items, 4'096, consumers, false));
  }
  std::printf(
      "{\"items\": %llu, \"consumers\": %zu, \"on_cpu\": %s, \"frames_per_s\": %.0f, "
      "\"copies_per_s\": %.0f, \"frames_to_copies\": %.3f, \"items_per_s\": %.0f, "
      "\"items_per_s_many\": %.0f}\n",
      static_cast<unsigned long long>(items),
      consumers,
      on_cpu ? "true" : "false",
      frames,
      copies,
      copies == 0 ? 0 : frames / copies,
      one,
      many);
  return 0;
}

}  // namespace
}  // namespace gpushm::bench

int main(int argc, char** argv) {
  try {
    return gpushm::bench::run(argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 20'000,
                              argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 8,
                              argc > 3 && std::string_view(argv[3]) == "cpu");
  } catch (const std::exception& why) {
    std::fprintf(stderr, "gpushm_frames: %s\n", why.what());
    return 1;
  }
}
