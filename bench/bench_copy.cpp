// SPDX-License-Identifier: Apache-2.0
// Copy bandwidth out of a mapping of another process's segment, compared to the same copy out of
// memory that this process allocated. Both run in one loop; `ratio` should be 1.
#include <benchmark/benchmark.h>

#include <cstring>
#include <vector>

#include "bench/bench_support.hpp"
#include "gpu/driver/cuda.hpp"
#include "gpu/driver/devices.hpp"
#include "gpu/driver/owners.hpp"

namespace gpushm::bench {
namespace {

constexpr std::uint64_t size_bytes = 1UL << 30U;
constexpr int copies = 10;

void report(benchmark::State& state, const samples& own, const samples& mapped) {
  const double gigabytes = copies * static_cast<double>(size_bytes) / 1e9;
  state.counters["own_GBps"] = gigabytes / (own.median() / 1e6);
  state.counters["mapped_GBps"] = gigabytes / (mapped.median() / 1e6);
  state.counters["ratio"] = own.median() / mapped.median();
}

void copy_on_gpu(benchmark::State& state, int home, int user) {
  using driver::cuda_driver;
  const auto& cu = cuda_driver::instance();
  const auto check = [](cuda::CUresult result, std::string_view call) {
    cuda_driver::check(result, "bench", {}, call);
  };
  private_broker broker;
  client producer = broker.connect();
  client consumer = broker.connect();
  const std::string home_text = std::to_string(home);
  segment exported = producer.create("bench", {.size_bytes = size_bytes, .device = home_text});
  exported.publish();
  const segment mapped = consumer.open("bench", {.device = std::to_string(user)});

  // Allocated by this process on the same GPU as the segment, and used from the same GPU as the
  // mapping.
  segment own_memory = producer.create("own", {.size_bytes = size_bytes, .device = home_text});
  own_memory.publish();
  const segment own_peer = producer.open("own", {.device = std::to_string(user)});
  const segment& own = home == user ? own_memory : own_peer;

  const auto& gpu = driver::visible_gpus().at(static_cast<std::size_t>(user));
  const auto context = driver::retain_primary_context(gpu.handle, "bench", gpu.id.uuid);
  const driver::context_scope scope(context.get().context, "bench", gpu.id.uuid);
  cuda::CUdeviceptr target = 0;
  check(cu->cuMemAlloc_v2(&target, size_bytes), "cuMemAlloc");
  cuda::CUstream stream = nullptr;
  check(cu->cuStreamCreate(&stream, cuda::CU_STREAM_NON_BLOCKING), "cuStreamCreate");

  const auto copy_from = [&](const segment& source) {
    const auto address = reinterpret_cast<cuda::CUdeviceptr>(source.data());
    for (int i = 0; i < copies; ++i) {
      check(cu->cuMemcpyDtoDAsync_v2(target, address, size_bytes, stream), "cuMemcpyDtoDAsync");
    }
    check(cu->cuStreamSynchronize(stream), "cuStreamSynchronize");
  };
  copy_from(own);
  copy_from(mapped);
  samples own_times;
  samples mapped_times;
  for (auto _ : state) {
    own_times.time([&] { copy_from(own); });
    mapped_times.time([&] { copy_from(mapped); });
  }
  cu->cuStreamDestroy_v2(stream);
  cu->cuMemFree_v2(target);
  report(state, own_times, mapped_times);
}

void copy_on_host(benchmark::State& state) {
  private_broker broker;
  client producer = broker.connect();
  client consumer = broker.connect();
  const create_options options{.size_bytes = size_bytes, .device = "host"};
  segment exported = producer.create("bench", options);
  exported.fill(std::byte{1});
  exported.publish();
  segment own = producer.create("own", options);
  own.fill(std::byte{2});
  const segment mapped = consumer.open("bench");
  std::vector<std::byte> target(size_bytes);
  const auto copy_from = [&](const segment& source) {
    for (int i = 0; i < copies; ++i) {
      std::memcpy(target.data(), source.data(), size_bytes);
      benchmark::ClobberMemory();
    }
  };
  copy_from(own);
  copy_from(mapped);
  samples own_times;
  samples mapped_times;
  for (auto _ : state) {
    own_times.time([&] { copy_from(own); });
    mapped_times.time([&] { copy_from(mapped); });
  }
  report(state, own_times, mapped_times);
}

}  // namespace
}  // namespace gpushm::bench

int main(int argc, char** argv) {
  using gpushm::bench::gpu_count;
  benchmark::Initialize(&argc, argv);
  benchmark::RegisterBenchmark("copy/host", gpushm::bench::copy_on_host)->Iterations(5);
  if (gpu_count() > 0) {
    benchmark::RegisterBenchmark("copy/same_gpu", [](benchmark::State& s) {
      gpushm::bench::copy_on_gpu(s, 0, 0);
    })->Iterations(21);
  }
  if (gpu_count() > 1) {
    benchmark::RegisterBenchmark("copy/peer_gpu", [](benchmark::State& s) {
      gpushm::bench::copy_on_gpu(s, 0, 1);
    })->Iterations(21);
  }
  benchmark::RunSpecifiedBenchmarks();
}
