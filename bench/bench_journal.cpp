// SPDX-License-Identifier: Apache-2.0
// What it costs that a broker can be killed without loss: gpushm-brokerd, with its journal and its
// keeper, compared to the same broker without them, one after the other in each iteration. Rounds
// of requests without descriptors (stat), with one each way (open and release), and of the whole
// life of a segment (create, publish, remove).
#include <benchmark/benchmark.h>

#include <chrono>
#include <functional>
#include <string>

#include "bench/bench_support.hpp"
#include "gpushm/gpushm.hpp"
#include "tests/support/brokerd/brokerd.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm::bench {
namespace {

constexpr int rounds = 2'000;

using round = std::function<void(client& client, const std::string& name)>;

void stat_it(client& client, const std::string& name) {
  benchmark::DoNotOptimize(client.stat(name));
}

void open_it(client& client, const std::string& name) {
  benchmark::DoNotOptimize(client.open(name));
}

void live_once(client& client, const std::string& name) {
  segment created = client.create(name + "-new", {.size_bytes = 4'096, .device = "host"});
  created.publish();
  client.remove(name + "-new");
}

/// A client, and a segment that another client has created.
struct user {
  explicit user(const std::string& socket)
      : creator(client::connect({.socket_path = socket})),
        created(creator.create("bench", {.size_bytes = 4'096, .device = "host"})),
        from(client::connect({.socket_path = socket, .cache = {.max_entries = 0}})) {
    created.publish();
  }
  [[nodiscard]] double seconds_of(const round& round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < rounds; ++i) {
      round(from, "bench");
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  client creator;
  segment created;
  client from;
};

void with_and_without(benchmark::State& state, const round& round) {
  const broker_process plain;
  const gpushm_testing::temp_dir directory(0755);
  const gpushm_testing::brokerd kept(directory / "run", {"--domain", "default"});
  user of_plain(plain.socket_path());
  user of_kept(directory / "run/d/default/socket");
  double without = 0;
  double with = 0;
  for (auto _ : state) {
    without += of_plain.seconds_of(round);
    with += of_kept.seconds_of(round);
  }
  const double all = static_cast<double>(state.iterations()) * rounds;
  state.counters["us_without"] = without / all * 1e6;
  state.counters["us_with"] = with / all * 1e6;
  state.counters["ratio"] = with / without;
}

}  // namespace
}  // namespace gpushm::bench

int main(int argc, char** argv) {
  using namespace gpushm::bench;
  benchmark::Initialize(&argc, argv);
  benchmark::RegisterBenchmark("journal/stat", with_and_without, stat_it)->Iterations(10);
  benchmark::RegisterBenchmark("journal/open", with_and_without, open_it)->Iterations(10);
  benchmark::RegisterBenchmark("journal/create", with_and_without, live_once)->Iterations(10);
  benchmark::RunSpecifiedBenchmarks();
}
