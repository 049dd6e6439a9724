// SPDX-License-Identifier: Apache-2.0
// Cost of the device plugin's responses at 64 GPUs of 100 replicas: each call is timed by itself,
// alternating with the minimum work of such a response (copying the ids), and reported as
// percentiles.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "kubernetes/device_plugin/plan/plan.hpp"

namespace gpushm::bench {
namespace {

using namespace device_plugin;

constexpr unsigned int gpus = 64;
constexpr unsigned int replicas = 100;

inventory many_gpus() {
  inventory inventory;
  for (unsigned int i = 0; i < gpus; ++i) {
    std::array<char, 64> uuid{};
    static_cast<void>(
        std::snprintf(uuid.data(), uuid.size(), "GPU-%08x-1111-4222-8333-444455556666", i));
    gpu_info created;
    created.entry.index = i;
    created.entry.uuid = uuid.data();
    created.numa_node = i / (gpus / 2);
    inventory.gpus.push_back(std::move(created));
  }
  inventory.closeness.assign(gpus, std::vector<unsigned int>(gpus, 0));
  for (unsigned int a = 0; a < gpus; ++a) {
    for (unsigned int b = 0; b < gpus; ++b) {
      inventory.closeness[a][b] = a == b ? 0 : a / 8 == b / 8 ? 1820 : 10;
    }
  }
  return inventory;
}

planned plan_of(unsigned int copies, device_list_strategy list) {
  configuration settings;
  settings.flags.device_list = {list};
  if (copies > 0) {
    settings.slicing.resources = {{"nvidia.com/gpu", "", {}, copies}};
  }
  plan_options options;
  options.share_replicas = 0;
  return make_plan(settings, options, many_gpus());
}

std::vector<std::string> shuffled_ids(const resource& resource) {
  std::vector<std::string> ids;
  for (const device& each : resource.devices()) {
    ids.push_back(each.id);
  }
  std::mt19937 random(1);  // NOLINT(cert-msc51-cpp): the same order in each run
  std::shuffle(ids.begin(), ids.end(), random);
  return ids;
}

template <typename Call>
double microseconds(Call&& call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
      .count();
}

double percentile(std::vector<double>& values, double part) {
  const auto at =
      values.begin() + static_cast<std::ptrdiff_t>(part * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

template <typename Call>
void measure(benchmark::State& state, const std::vector<std::string>& ids, Call&& call) {
  std::vector<double> taken;
  std::vector<double> copied;
  for (auto _ : state) {
    copied.push_back(microseconds([&] {
      std::vector<std::string> copy = ids;
      benchmark::DoNotOptimize(copy.data());
    }));
    taken.push_back(microseconds(call));
  }
  constexpr double middle = 0.5;
  constexpr double late = 0.99;
  state.counters["p50_us"] = percentile(taken, middle);
  state.counters["p99_us"] = percentile(taken, late);
  state.counters["copy_of_ids_p50_us"] = percentile(copied, middle);
  state.counters["ratio"] = percentile(taken, middle) / percentile(copied, middle);
}

// The ids of a container that requests that number of devices.
void allocate(benchmark::State& state) {
  const planned plan = plan_of(replicas, device_list_strategy::envvar);
  auto ids = shuffled_ids(*plan.resources.at(0));
  ids.resize(static_cast<std::size_t>(state.range(0)));
  const std::vector<std::vector<std::string>> containers{ids};
  measure(state, ids, [&] {
    benchmark::DoNotOptimize(plan.resources[0]->allocate(containers).data());
  });
}
BENCHMARK(allocate)->Arg(1)->Arg(8)->Arg(6400)->Iterations(2'000)->Unit(benchmark::kMicrosecond);

// All devices are available, and the container requests that number.
void prefer_replicas(benchmark::State& state) {
  const planned plan = plan_of(replicas, device_list_strategy::envvar);
  const auto ids = shuffled_ids(*plan.resources.at(0));
  const auto count = static_cast<std::size_t>(state.range(0));
  measure(state, ids, [&] {
    benchmark::DoNotOptimize(plan.resources[0]->prefer(ids, {}, count).data());
  });
}
BENCHMARK(prefer_replicas)->Arg(1)->Arg(8)->Iterations(2'000)->Unit(benchmark::kMicrosecond);

void prefer_gpus(benchmark::State& state) {
  const planned plan = plan_of(0, device_list_strategy::envvar);
  const auto ids = shuffled_ids(*plan.resources.at(0));
  const auto count = static_cast<std::size_t>(state.range(0));
  measure(state, ids, [&] {
    benchmark::DoNotOptimize(plan.resources[0]->prefer(ids, {}, count).data());
  });
}
BENCHMARK(prefer_gpus)->Arg(1)->Arg(2)->Arg(8)->Iterations(1'000)->Unit(benchmark::kMicrosecond);

// The parts of a ListAndWatch message.
void list_devices(benchmark::State& state) {
  const planned plan = plan_of(replicas, device_list_strategy::envvar);
  const auto ids = shuffled_ids(*plan.resources.at(0));
  measure(state, ids, [&] { benchmark::DoNotOptimize(plan.resources[0]->devices().data()); });
}
BENCHMARK(list_devices)->Iterations(1'000)->Unit(benchmark::kMicrosecond);

// Close to the upper bound of combinations that are tried: 16 GPUs, 8 requested.
void prefer_every_combination(benchmark::State& state) {
  inventory inventory = many_gpus();
  inventory.gpus.resize(16);
  configuration settings;
  settings.flags.device_list = {device_list_strategy::envvar};
  plan_options options;
  options.share_replicas = 0;
  const planned plan = make_plan(settings, options, inventory);
  const auto ids = shuffled_ids(*plan.resources.at(0));
  measure(
      state, ids, [&] { benchmark::DoNotOptimize(plan.resources[0]->prefer(ids, {}, 8).data()); });
}
BENCHMARK(prefer_every_combination)->Iterations(1'000)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace gpushm::bench

BENCHMARK_MAIN();
