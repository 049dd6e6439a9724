// SPDX-License-Identifier: Apache-2.0
// Cost of `gpushm cdi inject` of one device as a whole process, compared to the minimum cost of a
// process on this machine: an empty static program, started the same way, alternating with it.
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "apps/support/temp_directory.hpp"
#include "base/process/child_process.hpp"

namespace gpushm::bench {
namespace {

namespace fs = std::filesystem;

/// Next to this program, or in the build tree.
std::string program(const std::string& name, const std::string& folder) {
  const fs::path own = fs::path(base::executable_path()).parent_path();
  for (const fs::path& candidate : {own / name, own / ".." / folder / name}) {
    if (fs::is_regular_file(candidate)) {
      return candidate.lexically_normal().string();
    }
  }
  throw std::runtime_error("no program " + name);
}

/// As many files as a data center driver has, and eight GPUs by index and UUID.
void write_document(const std::string& path) {
  std::ofstream out(path);
  out << R"({"cdiVersion":"0.5.0","kind":"nvidia.com/gpu","devices":[)";
  for (int i = 0; i < 16; ++i) {
    const std::string minor = std::to_string(i % 8);
    out << (i == 0 ? "" : ",") << R"({"name":")" << (i < 8 ? "" : "GPU-0f3c5b9e-0000-0000-0000-")
        << minor << R"(","containerEdits":{"deviceNodes":[{"path":"/dev/nvidia)" << minor
        << R"(","hostPath":"/dev/null"},{"path":"/dev/dri/card)" << minor
        << R"(","hostPath":"/dev/zero"}]}})";
  }
  out << R"(],"containerEdits":{"env":["NVIDIA_VISIBLE_DEVICES=void"],"deviceNodes":[)"
      << R"({"path":"/dev/nvidiactl","hostPath":"/dev/null"}],"hooks":[{"hookName":)"
      << R"("createContainer","path":"/usr/bin/gpushm","args":["gpushm","cdi","hook",)"
      << R"("update-ldcache","--folder","/usr/lib/x86_64-linux-gnu"]}],"mounts":[)";
  for (int i = 0; i < 60; ++i) {
    const std::string file =
        "/usr/lib/x86_64-linux-gnu/libnvidia-" + std::to_string(i) + ".so.550.54.15";
    out << (i == 0 ? "" : ",") << R"({"hostPath":")" << file << R"(","containerPath":")" << file
        << R"(","options":["ro","nosuid","nodev","rbind","rprivate"]})";
  }
  out << "]}}";
}

/// Configurations of container engines have some hundred members.
void write_config(const std::string& path) {
  std::ofstream out(path);
  out << R"({"ociVersion":"1.0.2","process":{"user":{"uid":0,"gid":0},"args":["sh"],"cwd":"/","env":[)";
  for (int i = 0; i < 40; ++i) {
    out << (i == 0 ? "" : ",") << "\"VARIABLE_" << i << "=some value of usual length\"";
  }
  out << R"(]},"root":{"path":"rootfs"},"mounts":[)";
  for (int i = 0; i < 20; ++i) {
    out << (i == 0 ? "" : ",") << R"({"destination":"/mnt/)" << i
        << R"(","type":"bind","source":"/srv","options":["rbind","ro"]})";
  }
  out << R"(],"linux":{"namespaces":[{"type":"pid"},{"type":"mount"}],"seccomp":{"syscalls":[)";
  for (int i = 0; i < 300; ++i) {
    out << (i == 0 ? "" : ",") << "\"system_call_" << i << "\"";
  }
  out << "]}}}";
}

double run_us(const std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (const std::string& word : words) {
    pointers.push_back(const_cast<char*>(word.c_str()));  // NOLINT(*-const-cast): execve's type
  }
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  std::array<char*, 1> environment{nullptr};
  const auto start = std::chrono::steady_clock::now();
  pid_t pid = 0;
  int status = -1;
  const int failed = ::posix_spawn(
      &pid, words.front().c_str(), &actions, nullptr, pointers.data(), environment.data());
  if (failed == 0) {
    ::waitpid(pid, &status, 0);
  }
  const auto end = std::chrono::steady_clock::now();
  ::posix_spawn_file_actions_destroy(&actions);
  if (status != 0) {
    throw std::runtime_error(words.front() + " failed");
  }
  return std::chrono::duration<double, std::micro>(end - start).count();
}

double median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void inject_one_device(benchmark::State& state) {
  const app::temp_directory directory("gpushm-bench");
  fs::create_directory(directory.path() + "/cdi");
  write_document(directory.path() + "/cdi/nvidia.json");
  write_config(directory.path() + "/config.json");
  const std::vector<std::string> inject{program("gpushm", "apps/gpushm"),
                                        "cdi",
                                        "inject",
                                        "nvidia.com/gpu=0",
                                        "--spec",
                                        directory.path() + "/config.json",
                                        "--spec-dir",
                                        directory.path() + "/cdi"};
  const std::vector<std::string> empty{program("gpushm_bench_empty", "bench")};
  std::vector<double> injected;
  std::vector<double> started;
  for (auto _ : state) {
    started.push_back(run_us(empty));
    injected.push_back(run_us(inject));
  }
  const double inject_us = median(injected);
  const double empty_us = median(started);
  state.counters["inject_us"] = inject_us;
  state.counters["empty_process_us"] = empty_us;
  state.counters["ratio"] = inject_us / empty_us;
}
BENCHMARK(inject_one_device)->Iterations(300)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace gpushm::bench

BENCHMARK_MAIN();
