// SPDX-License-Identifier: Apache-2.0
// What channels carry, on GPU 0, without a stream that is waited for:
//  - frames: the producer's streams (1 to 3, in turn) copy 12 MiB into each slot, from the GPU or
//    from the host, a consumer of another process releases it; compared with the same copies
//    without a channel;
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
#include "gpu/driver/cuda.hpp"
#include "gpu/driver/devices.hpp"
#include "gpu/driver/primary_context.hpp"
#include "gpushm/gpushm.hpp"

namespace gpushm::bench {
namespace {

using std::chrono::steady_clock;

constexpr std::uint64_t frame_bytes = 3'840ULL * 2'160 * 3 / 2;  // a 4K image, NV12
constexpr std::uint32_t frame_slots = 8;
constexpr std::uint32_t item_slots = 64;
/// The producer's largest number of streams: one waits and signals while another one copies.
constexpr std::size_t most_streams = 3;
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
/// Returns false if the other process has ended.
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
      auto item = stream ? consumer.next(*stream, std::chrono::seconds(20))
                         : consumer.next(std::chrono::seconds(20));
      if (!item) {
        break;
      }
      item->release();
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
      : client_(client::connect({.socket_path = broker})), others_(others) {
    for (auto& each : streams_) {
      each = make_stream(on_cpu);
    }
    if (!on_cpu) {
      must(cu()->cuMemAlloc_v2(&source_, frame_bytes));
      must(cu()->cuMemAlloc_v2(&target_, frame_bytes * frame_slots));
      must(cu()->cuMemHostAlloc(&host_source_, frame_bytes, 0));
    }
  }

  struct work {
    std::uint64_t items;
    std::size_t consumers = 1;
    bool copies = false;      ///< a frame into each slot
    std::size_t streams = 1;  ///< of the producer, in turn
    bool from_host = false;   ///< the frames
  };
  /// Items a second.
  double rate(const work& work) {
    auto producer = channel_producer::create(client_,
                                             "c",
                                             {.slot_bytes = work.copies ? frame_bytes : 4'096,
                                              .slots = work.copies ? frame_slots : item_slots,
                                              .device = has_stream() ? "0" : "host"});
    const auto consumers = work.consumers;
    for (std::size_t i = 0; i != consumers; ++i) {
      give(others_[i]->socket());
    }
    for (std::size_t i = 0; i != consumers; ++i) {
      if (!take(others_[i]->socket())) {
        throw std::runtime_error("a consumer has ended");
      }
    }
    const auto begin = steady_clock::now();
    for (std::uint64_t i = 0; i != work.items; ++i) {
      const auto stream = streams_.at(i % work.streams);
      auto slot = stream ? producer.acquire(*stream, std::chrono::seconds(20))
                         : producer.acquire(std::chrono::seconds(20));
      if (!slot) {
        throw std::runtime_error("no slot in 20 s");
      }
      if (work.copies) {
        copy_to(reinterpret_cast<cuda::CUdeviceptr>(slot->data()), *stream, work.from_host);
      }
      slot->publish();
    }
    synchronize();
    const double took = seconds_since(begin);
    producer.reset();
    for (std::size_t i = 0; i != consumers; ++i) {
      static_cast<void>(take(others_[i]->socket()));
    }
    return static_cast<double>(work.items) / took;
  }
  /// The same copies, without a channel.
  double rate_of_copies(const work& work) {
    const auto begin = steady_clock::now();
    for (std::uint64_t i = 0; i != work.items; ++i) {
      copy_to(
          target_ + i % frame_slots * frame_bytes, *streams_.at(i % work.streams), work.from_host);
    }
    synchronize();
    return static_cast<double>(work.items) / seconds_since(begin);
  }
  [[nodiscard]] bool has_stream() const { return streams_.front().has_value(); }

 private:
  void copy_to(cuda::CUdeviceptr target, cuda::CUstream stream, bool from_host) {
    must(from_host ? cu()->cuMemcpyHtoDAsync_v2(target, host_source_, frame_bytes, stream)
                   : cu()->cuMemcpyDtoDAsync_v2(target, source_, frame_bytes, stream));
  }
  void synchronize() {
    for (const auto& each : streams_) {
      if (each) {
        must(cu()->cuStreamSynchronize(*each));
      }
    }
  }
  std::array<std::optional<cuda::CUstream>, most_streams> streams_;
  client client_;
  std::vector<std::unique_ptr<second_process>>& others_;
  cuda::CUdeviceptr source_ = 0;
  cuda::CUdeviceptr target_ = 0;
  void* host_source_ = nullptr;
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
  using work = producer_side::work;
  const std::uint64_t few = std::max<std::uint64_t>(1, items / 10);
  const std::array<work, 4> frames{{{.items = few, .copies = true},
                                    {.items = few, .copies = true, .streams = 2},
                                    {.items = few, .copies = true, .streams = most_streams},
                                    {.items = few, .copies = true, .from_host = true}}};
  std::array<double, frames.size()> frame_rates{};
  std::array<double, frames.size()> copy_rates{};
  double one = 0;
  double many = 0;
  for (int i = 0; i != repetitions; ++i) {
    for (std::size_t at = 0; here.has_stream() && at != frames.size(); ++at) {
      copy_rates.at(at) = std::max(copy_rates.at(at), here.rate_of_copies(frames.at(at)));
      frame_rates.at(at) = std::max(frame_rates.at(at), here.rate(frames.at(at)));
    }
    one = std::max(one, here.rate({.items = items}));
    many = std::max(many, here.rate({.items = items, .consumers = consumers}));
  }
  std::printf("{\"items\": %llu, \"consumers\": %zu, \"on_cpu\": %s, \"frames\": [",
              static_cast<unsigned long long>(items),
              consumers,
              on_cpu ? "true" : "false");
  // The limit: copies without a channel, on as many streams as are fastest.
  const double limit = *std::max_element(copy_rates.begin(), copy_rates.end() - 1);
  for (std::size_t at = 0; here.has_stream() && at != frames.size(); ++at) {
    const double copies = frames.at(at).from_host ? copy_rates.at(at) : limit;
    std::printf(
        "%s{\"streams\": %zu, \"from_host\": %s, \"frames_per_s\": %.0f, \"copies_per_s\": %.0f, "
        "\"ratio\": %.3f}",
        at == 0 ? "" : ", ",
        frames.at(at).streams,
        frames.at(at).from_host ? "true" : "false",
        frame_rates.at(at),
        copies,
        frame_rates.at(at) / copies);
  }
  std::printf("], \"items_per_s\": %.0f, \"items_per_s_many\": %.0f}\n", one, many);
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
