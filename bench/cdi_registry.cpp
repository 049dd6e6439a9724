// SPDX-License-Identifier: Apache-2.0
// A registry of 1,000 documents: time of reading all of it, and of reading it again when nothing,
// or one document, has changed.
#include <benchmark/benchmark.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "apps/support/temp_directory.hpp"
#include "containers/cdi/document/write.hpp"
#include "containers/cdi/registry/registry.hpp"

namespace {

namespace cdi = gpushm::cdi;

constexpr int documents = 1'000;

/// As the generator writes for one GPU, with fewer mounts.
cdi::document document_of(int number) {
  cdi::document created;
  created.version = "0.5.0";
  created.kind = "example.com/gpu" + std::to_string(number);
  created.changes.env = {"NVIDIA_VISIBLE_DEVICES=void"};
  created.changes.mounts = {{"/usr/lib/libcuda.so.1",
                             "/usr/lib/libcuda.so.1",
                             {"ro", "nosuid", "nodev", "rbind", "rprivate"},
                             {}}};
  created.changes.hooks = {
      {"createContainer", "/usr/bin/hook", {"hook", "update-ldcache"}, {}, {}}};
  for (const char* name : {"0", "all"}) {
    cdi::device& device = created.devices.emplace_back();
    device.name = name;
    cdi::device_node& node = device.changes.device_nodes.emplace_back();
    node.path = "/dev/nvidia0";
    node.major = 195;
  }
  return created;
}

class directory {
 public:
  directory() : temporary_("gpushm-bench") {
    for (int number = 0; number < documents; ++number) {
      std::ofstream(file(number)) << cdi::to_text(document_of(number), cdi::format::yaml);
    }
  }
  [[nodiscard]] std::string file(int number) const {
    return path() + "/" + std::to_string(number) + ".yaml";
  }
  [[nodiscard]] const std::string& path() const { return temporary_.path(); }

 private:
  gpushm::app::temp_directory temporary_;
};

void load(benchmark::State& state) {
  const directory where;
  for (auto _ : state) {
    const cdi::registry registry({where.path()});
    if (registry.devices().size() != 2 * documents) {
      state.SkipWithError("devices are missing");
    }
  }
}
BENCHMARK(load)->Unit(benchmark::kMillisecond);

void refresh_unchanged(benchmark::State& state) {
  const directory where;
  cdi::registry registry({where.path()});
  for (auto _ : state) {
    benchmark::DoNotOptimize(registry.refresh());
  }
}
BENCHMARK(refresh_unchanged)->Unit(benchmark::kMillisecond);

void refresh_one_changed(benchmark::State& state) {
  const directory where;
  cdi::registry registry({where.path()});
  cdi::document one = document_of(0);
  for (auto _ : state) {
    state.PauseTiming();
    one.devices[0].changes.device_nodes[0].minor++;
    std::ofstream(where.file(0)) << cdi::to_text(one, cdi::format::yaml);
    state.ResumeTiming();
    if (!registry.refresh()) {
      state.SkipWithError("the change was not detected");
    }
  }
}
BENCHMARK(refresh_one_changed)->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
