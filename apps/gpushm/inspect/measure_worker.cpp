// SPDX-License-Identifier: Apache-2.0
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <optional>

#include "apps/gpushm/command.hpp"
#include "apps/gpushm/commands.hpp"
#include "apps/gpushm/exit_status.hpp"
#include "apps/gpushm/inspect/stopwatch.hpp"
#include "apps/gpushm/json_output.hpp"
#include "apps/gpushm/segment/device_memory.hpp"
#include "base/files/unique_fd.hpp"
#include "gpu/driver/devices.hpp"
#include "gpu/driver/owners.hpp"
#include "gpu/driver/primary_context.hpp"
#include "inspect/facts/json.hpp"
#include "inspect/topology/json.hpp"

namespace gpushm::cli {

namespace {

/// Measures between GPUs and prints JSON; started by `topo --measure`.
struct measure_worker_arguments {};

void add_measure_worker_arguments(CLI::App& app, measure_worker_arguments& /*arguments*/) {
  app.group("");
}

using driver::cuda_driver;
using inspect::measured_pair;
using clock = std::chrono::steady_clock;

constexpr const char* operation = "measure";
constexpr std::uint64_t largest_copy = 256UL << 20U;
constexpr std::array<std::uint64_t, 3> copy_sizes{16UL << 20U, 64UL << 20U, largest_copy};
constexpr int copies_each = 5;
constexpr std::uint64_t small_copy = 16;
constexpr int train_length = 100;
constexpr int trains = 11;

void check(cuda::CUresult result, std::string_view call) {
  cuda_driver::check(result, operation, {}, call);
}

std::uint64_t free_bytes(const driver::gpu& where) {
  const driver::context_scope scope(
      driver::primary_context(where.handle, operation, where.id.uuid), operation, where.id.uuid);
  std::size_t left = 0;
  std::size_t total = 0;
  check(cuda_driver::instance()->cuMemGetInfo_v2(&left, &total), "cuMemGetInfo");
  return left;
}

/// A chunk of `owner`'s memory, exported, imported as in another process, and mapped for `reader`.
class imported_chunk {
 public:
  imported_chunk(const driver::gpu& owner, const driver::gpu& reader, std::uint64_t size_bytes) {
    const cuda_driver& cu = cuda_driver::instance();
    cuda::CUmemAllocationProp prop{};
    prop.type = cuda::CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.requestedHandleTypes = cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    prop.location = {cuda::CU_MEM_LOCATION_TYPE_DEVICE, owner.handle};
    cuda::CUmemGenericAllocationHandle handle = 0;
    check(cu->cuMemCreate(&handle, size_bytes, &prop, 0), "cuMemCreate");
    original_ = driver::unique_allocation(handle);
    int fd = -1;
    check(cu->cuMemExportToShareableHandle(
              &fd, handle, cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
          "cuMemExportToShareableHandle");
    const base::unique_fd descriptor(fd);
    const auto start = clock::now();
    map(descriptor.get(), reader, size_bytes);
    time_ = clock::now() - start;
  }
  [[nodiscard]] cuda::CUdeviceptr address() const { return reservation_.get().pointer; }
  [[nodiscard]] std::chrono::nanoseconds time() const { return time_; }

 private:
  void map(int fd, const driver::gpu& reader, std::uint64_t size_bytes) {
    const cuda_driver& cu = cuda_driver::instance();
    cuda::CUmemGenericAllocationHandle handle = 0;
    void* const shareable =
        reinterpret_cast<void*>(  // NOLINT(performance-no-int-to-ptr): CUDA's type of descriptors
            static_cast<std::intptr_t>(fd));
    check(cu->cuMemImportFromShareableHandle(
              &handle, shareable, cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
          "cuMemImportFromShareableHandle");
    imported_ = driver::unique_allocation(handle);
    cuda::CUdeviceptr address = 0;
    check(cu->cuMemAddressReserve(&address, size_bytes, 0, 0, 0), "cuMemAddressReserve");
    reservation_ = driver::unique_reservation({address, size_bytes});
    check(cu->cuMemMap(address, size_bytes, 0, handle, 0), "cuMemMap");
    mapping_ = driver::unique_device_mapping({address, size_bytes});
    cuda::CUmemAccessDesc rights{};
    rights.location = {cuda::CU_MEM_LOCATION_TYPE_DEVICE, reader.handle};
    rights.flags = cuda::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    check(cu->cuMemSetAccess(address, size_bytes, &rights, 1), "cuMemSetAccess");
  }

  driver::unique_allocation original_;
  driver::unique_allocation imported_;
  driver::unique_reservation reservation_;
  driver::unique_device_mapping mapping_;
  std::chrono::nanoseconds time_{0};
};

std::uint64_t chunk_bytes(const driver::gpu& reader, const driver::gpu& owner) {
  cuda::CUmemAllocationProp prop{};
  prop.type = cuda::CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.requestedHandleTypes = cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  prop.location = {cuda::CU_MEM_LOCATION_TYPE_DEVICE, owner.handle};
  std::size_t granularity = 0;
  check(cuda_driver::instance()->cuMemGetAllocationGranularity(
            &granularity, &prop, cuda::CU_MEM_ALLOC_GRANULARITY_MINIMUM),
        "cuMemGetAllocationGranularity");
  const std::uint64_t most =
      std::min({largest_copy, free_bytes(reader) / 4, free_bytes(owner) / 4});
  return most / granularity * granularity;
}

void measure_bandwidth(stopwatch& watch,
                       cuda::CUdeviceptr target,
                       cuda::CUdeviceptr source,
                       measured_pair& pair) {
  std::vector<std::uint64_t> sizes;
  for (const std::uint64_t size : copy_sizes) {
    if (size < pair.mapped_bytes) {
      sizes.push_back(size);
    }
  }
  sizes.push_back(pair.mapped_bytes);
  static_cast<void>(watch.seconds_of(target, source, pair.mapped_bytes, 1));
  for (const std::uint64_t size : sizes) {
    for (int i = 0; i < copies_each; ++i) {
      const double seconds = watch.seconds_of(target, source, size, 1);
      const double rate = seconds > 0 ? static_cast<double>(size) / seconds : 0;
      if (rate > pair.bytes_per_second) {
        pair.bytes_per_second = rate;
        pair.copy_bytes = size;
      }
    }
  }
}

void measure_latency(stopwatch& watch,
                     cuda::CUdeviceptr target,
                     cuda::CUdeviceptr source,
                     measured_pair& pair) {
  static_cast<void>(watch.seconds_of(target, source, small_copy, train_length));
  std::array<double, trains> each{};
  for (double& seconds : each) {
    seconds = watch.seconds_of(target, source, small_copy, train_length) / train_length;
  }
  std::nth_element(each.begin(), each.begin() + trains / 2, each.end());
  pair.latency_ns = each[trains / 2] * 1e9;
}

void measure(const driver::gpu& reader, const driver::gpu& owner, measured_pair& pair) {
  if (reader.handle != owner.handle) {
    int can = 0;
    check(cuda_driver::instance()->cuDeviceCanAccessPeer(&can, reader.handle, owner.handle),
          "cuDeviceCanAccessPeer");
    if (can == 0) {
      pair.problem = "no peer access";
      return;
    }
  }
  pair.mapped_bytes = chunk_bytes(reader, owner);
  if (pair.mapped_bytes == 0) {
    pair.problem = "too little free memory";
    return;
  }
  const cuda::CUcontext context = driver::primary_context(reader.handle, operation, reader.id.uuid);
  const driver::context_scope scope(context, operation, reader.id.uuid);
  const imported_chunk source(owner, reader, pair.mapped_bytes);
  pair.mapping_ns = static_cast<double>(source.time().count());
  const device_memory target(reader, pair.mapped_bytes, reader.id.uuid);
  const auto target_address = reinterpret_cast<std::uintptr_t>(target.data());
  // Memory that was never written may be faster to read.
  check(cuda_driver::instance()->cuMemsetD8_v2(source.address(), 0x5a, pair.mapped_bytes),
        "cuMemsetD8");
  check(cuda_driver::instance()->cuCtxSynchronize(), "cuCtxSynchronize");
  stopwatch watch(operation);
  measure_bandwidth(watch, target_address, source.address(), pair);
  measure_latency(watch, target_address, source.address(), pair);
}

std::vector<measured_pair> measure_all() {
  std::vector<measured_pair> pairs;
  for (const driver::gpu& reader : driver::visible_gpus()) {
    for (const driver::gpu& owner : driver::visible_gpus()) {
      measured_pair pair;
      pair.from = reader.id.uuid;
      pair.to = owner.id.uuid;
      const measured_pair nothing = pair;
      try {
        measure(reader, owner, pair);
      } catch (const error& failure) {
        // Discard incomplete measurements.
        pair = nothing;
        pair.problem = failure.cause();
      }
      pairs.push_back(std::move(pair));
    }
  }
  return pairs;
}

int run_measure_worker(const measure_worker_arguments& /*arguments*/) {
  const rlimit no_core{0, 0};  // the parent reports a crash
  ::setrlimit(RLIMIT_CORE, &no_core);
  try {
    print_json({{"measured", json(nlohmann::json(measure_all()))}});
    return exit_ok;
  } catch (const error& failure) {
    print_json(json{{"error", to_json(failure)}});
    return exit_failed;
  }
}

}  // namespace

void add_measure_worker(command_list& commands) {
  add_command<measure_worker_arguments>(
      commands, "measure-worker", "", add_measure_worker_arguments, run_measure_worker);
}

}  // namespace gpushm::cli
