// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/demo/demo_size.hpp"

#include <algorithm>
#include <bit>

#include "base/process/memory_limit.hpp"
#include "gpu/driver/device_text.hpp"
#include "gpu/driver/devices.hpp"
#include "gpu/driver/nvml.hpp"
#include "gpushm/error.hpp"

namespace gpushm::cli {

namespace {

demo_place place_of(const driver::gpu& gpu) {
  return {gpu.id.uuid, gpu.name, {}, gpu.id.kind};
}

}  // namespace

demo_place find_place(const std::string& device) {
  if (driver::normal_device(device) == "host") {
    return {"host", {}, {}, device_kind::host};
  }
  if (device != "auto") {
    return place_of(driver::find_device(device));
  }
  try {
    const auto& gpus = driver::visible_gpus();
    if (!gpus.empty()) {
      return place_of(gpus.front());
    }
    return {"host", {}, "no GPU is visible to this process", device_kind::host};
  } catch (const error& failure) {
    // Usually a machine without GPUs. Any other driver error ends the demo.
    if (failure.code() != errc::driver_unavailable) {
      throw;
    }
    return {"host", {}, failure.cause(), device_kind::host};
  }
}

std::optional<std::uint64_t> free_bytes(const demo_place& place) {
  if (place.kind == device_kind::host) {
    std::optional<std::uint64_t> min_free;
    for (const base::memory_bound& each : base::memory_bounds().read()) {
      min_free = std::min(min_free.value_or(each.free_bytes), each.free_bytes);
    }
    return min_free;
  }
  const driver::nvml_library* nvml = driver::nvml_library::try_instance();
  if (nvml == nullptr) {
    return std::nullopt;
  }
  for (const driver::nvml_gpu& gpu : nvml->gpus()) {
    if (gpu.id.uuid == place.device) {
      return gpu.free_bytes;
    }
  }
  return std::nullopt;  // a MIG instance: NVML lists whole GPUs
}

std::uint64_t fitting_size(std::uint64_t requested, std::uint64_t free_bytes) {
  const std::uint64_t max_size = free_bytes / 5 * 3;
  if (requested <= max_size) {
    return requested;
  }
  return std::max<std::uint64_t>(std::bit_floor(max_size), 1U << 20U);
}

}  // namespace gpushm::cli
