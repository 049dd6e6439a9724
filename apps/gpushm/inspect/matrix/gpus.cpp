// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/inspect/matrix/gpus.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "base/files/file.hpp"
#include "gpu/driver/device_text.hpp"
#include "gpu/driver/devices.hpp"
#include "gpushm/error.hpp"

namespace gpushm::cli::matrix {

namespace {

int minor_of(const inspect::driver_view& view, const inspect::cuda_gpu_view& gpu) {
  for (const inspect::nvml_gpu_view& candidate : view.nvml.gpus) {
    if (candidate.uuid == gpu.uuid && candidate.minor >= 0) {
      return candidate.minor;
    }
  }
  const auto text = base::read_small_file(
      fmt::format("{}/driver/nvidia/gpus/{}/information", driver::proc_root(), gpu.pci_address));
  return text ? driver::parse_gpu_information(*text).minor : -1;
}

}  // namespace

std::string gpu::text() const {
  return fmt::format("{} ({}, /dev/nvidia{})", name, uuid, minor);
}

std::vector<gpu> gpus_of(const inspect::driver_view& view) {
  std::vector<gpu> gpus;
  for (const inspect::cuda_gpu_view& each : view.cuda.gpus) {
    const int minor = minor_of(view, each);
    // A MIG instance needs more nodes than its GPU's, so it is omitted.
    if (minor >= 0 && !each.uuid.starts_with("MIG-")) {
      gpus.push_back({each.uuid, each.name, each.pci_address, each.ordinal, minor});
    }
  }
  return gpus;
}

std::vector<gpu> choose_gpus(const std::vector<gpu>& gpus,
                             const std::vector<std::string>& selection) {
  if (selection.empty()) {
    return {gpus.begin(),
            gpus.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(gpus.size(), 2))};
  }
  std::vector<driver::gpu> candidates;
  for (const gpu& each : gpus) {
    driver::gpu& candidate = candidates.emplace_back();
    candidate.ordinal = each.ordinal;
    candidate.id.kind = device_kind::gpu;
    candidate.id.uuid = each.uuid;
    candidate.id.pci_address = each.pci_address;
    candidate.id.minor = each.minor;
    candidate.name = each.name;
  }
  std::vector<gpu> chosen;
  for (const std::string& text : selection) {
    const std::string uuid = driver::find_device(text, candidates).id.uuid;
    const auto is_it = [&](const gpu& each) { return each.uuid == uuid; };
    if (std::any_of(chosen.begin(), chosen.end(), is_it)) {
      throw error(errc::invalid_argument,
                  "run matrix",
                  text,
                  "this GPU is listed twice",
                  "pass two different GPUs, or one");
    }
    chosen.push_back(*std::find_if(gpus.begin(), gpus.end(), is_it));
  }
  return chosen;
}

}  // namespace gpushm::cli::matrix
