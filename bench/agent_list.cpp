// SPDX-License-Identifier: Apache-2.0
// A node of 64 GPUs with 100 replicas each: time from a device's change until the kubelet has read
// the whole list, and of an Allocate round trip, over the plugin's socket.
#include <benchmark/benchmark.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "apps/support/temp_directory.hpp"
#include "kubernetes/device_plugin/server/messages.hpp"
#include "kubernetes/device_plugin/server/service.hpp"
#include "kubernetes/kubelet_api/unix_server.hpp"

namespace {

using gpushm::device_plugin::service;
using gpushm::kubelet::unix_server;
using clock_type = std::chrono::steady_clock;

constexpr std::size_t gpus = 64;
constexpr std::size_t replicas = 100;

std::string id_of(std::size_t number) {
  const std::string digits = std::to_string(100'000'000'000 + number / replicas);
  return std::string("GPU-8a1b2c3d-4e5f-6071-8293-")
      .append(digits)
      .append("::")
      .append(std::to_string(number % replicas));
}

class replicated final : public gpushm::device_plugin::resource {
 public:
  replicated() {
    for (std::size_t number = 0; number < gpus * replicas; ++number) {
      devices_.push_back({id_of(number), true, static_cast<std::int64_t>(number / replicas % 2)});
    }
  }
  [[nodiscard]] const std::string& name() const noexcept override { return name_; }
  [[nodiscard]] std::vector<gpushm::device_plugin::device> devices() const override {
    const std::lock_guard lock(mutex_);
    return devices_;
  }
  [[nodiscard]] std::vector<gpushm::device_plugin::allocation> allocate(
      std::span<const std::vector<std::string>> containers) const override {
    std::vector<gpushm::device_plugin::allocation> created(containers.size());
    for (std::size_t at = 0; at < containers.size(); ++at) {
      for (const std::string& id : containers[at]) {
        created[at].cdi_devices.push_back(
            std::string("k8s.device-plugin.gpushm.dev/gpu=").append(id));
      }
    }
    return created;
  }
  [[nodiscard]] std::vector<std::string> prefer(std::span<const std::string> available,
                                                std::span<const std::string> /*must_include*/,
                                                std::size_t count) const override {
    return {available.begin(), available.begin() + static_cast<std::ptrdiff_t>(count)};
  }
  [[nodiscard]] bool has_preferences() const noexcept override { return true; }
  void on_change(std::function<void()> /*changed*/) override {}

  void turn(std::size_t gpu) {
    const std::lock_guard lock(mutex_);
    for (std::size_t at = gpu * replicas; at < (gpu + 1) * replicas; ++at) {
      devices_[at].healthy = !devices_[at].healthy;
    }
  }

 private:
  std::string name_ = "nvidia.com/gpu.shared";
  mutable std::mutex mutex_;
  std::vector<gpushm::device_plugin::device> devices_;
};

struct served {
  gpushm::app::temp_directory where{"gpushm-bench"};
  std::shared_ptr<replicated> what = std::make_shared<replicated>();
  service answers{what, nullptr, [] {}};
  unix_server server{where.path() + "/plugin.sock", {&answers}};
  std::unique_ptr<v1beta1::DevicePlugin::Stub> stub =
      v1beta1::DevicePlugin::NewStub(grpc::CreateChannel("unix:" + where.path() + "/plugin.sock",
                                                         grpc::InsecureChannelCredentials()));
};

void add_p99(benchmark::State& state, std::vector<double>& milliseconds) {
  std::sort(milliseconds.begin(), milliseconds.end());
  if (!milliseconds.empty()) {
    state.counters["p50_ms"] = milliseconds[milliseconds.size() / 2];
    state.counters["p99_ms"] = milliseconds[milliseconds.size() * 99 / 100];
  }
}

double since(clock_type::time_point started) {
  return std::chrono::duration<double, std::milli>(clock_type::now() - started).count();
}

void list_update(benchmark::State& state) {
  served served;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(5));
  const auto stream = served.stub->ListAndWatch(&context, {});
  v1beta1::ListAndWatchResponse list;
  stream->Read(&list);
  std::vector<double> milliseconds;
  std::size_t gpu = 0;
  for (auto _ : state) {
    const auto started = clock_type::now();
    served.what->turn(gpu++ % gpus);
    served.answers.publish();
    if (!stream->Read(&list) || static_cast<std::size_t>(list.devices_size()) != gpus * replicas) {
      state.SkipWithError("no list");
      break;
    }
    milliseconds.push_back(since(started));
  }
  add_p99(state, milliseconds);
  context.TryCancel();
}
BENCHMARK(list_update)->Unit(benchmark::kMillisecond);

/// The plugin's share of that, before gRPC gets the message.
void list_message(benchmark::State& state) {
  const replicated replicated;
  for (auto _ : state) {
    v1beta1::ListAndWatchResponse list;
    gpushm::device_plugin::write_devices(replicated.devices(), list);
    benchmark::DoNotOptimize(list.ByteSizeLong());
  }
}
BENCHMARK(list_message)->Unit(benchmark::kMillisecond);

void allocate(benchmark::State& state) {
  served served;
  v1beta1::AllocateRequest request;
  for (std::int64_t number = 0; number < state.range(0); ++number) {
    if (number == 0) {
      request.add_container_requests();
    }
    request.mutable_container_requests(0)->add_devices_ids(id_of(static_cast<std::size_t>(number)));
  }
  std::vector<double> milliseconds;
  for (auto _ : state) {
    const auto started = clock_type::now();
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    v1beta1::AllocateResponse response;
    if (!served.stub->Allocate(&context, request, &response).ok()) {
      state.SkipWithError("not allocated");
      break;
    }
    milliseconds.push_back(since(started));
  }
  add_p99(state, milliseconds);
}
BENCHMARK(allocate)->Arg(1)->Arg(8)->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
