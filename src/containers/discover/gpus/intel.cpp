// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>

#include "containers/discover/gpus/drm_gpus.hpp"

namespace gpushm::discover {

namespace {

/// "0000-03-00-0-0x56a0", the name that Intel's generator and DRA driver give a GPU; empty if its
/// model is unknown.
std::string unique_name_of(const drm_device& device) {
  if (device.device == 0) {
    return {};
  }
  std::string name = device.name;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == ':' || c == '.'; }, '-');
  return fmt::format("{}-{:#06x}", name, device.device);
}

}  // namespace

drm_gpus find_intel_gpus(const root_view& sys) {
  drm_gpus result;
  for (const drm_device& device : find_drm_devices(sys)) {
    if (device.vendor != pci_vendor_intel || !is_usable(device, {"i915", "xe"}, result.report)) {
      continue;
    }
    drm_gpu gpu;
    gpu.index = static_cast<unsigned int>(result.gpus.size());
    gpu.address = device.name;
    gpu.unique_name = unique_name_of(device);
    for (const std::string& node : device.nodes) {
      gpu.nodes.push_back(std::string("/dev/dri/").append(node));
    }
    result.gpus.push_back(std::move(gpu));
  }
  result.summary = count_text(result.gpus.size(), "Intel GPU", "Intel GPUs");
  return result;
}

}  // namespace gpushm::discover
