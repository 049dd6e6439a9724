// SPDX-License-Identifier: Apache-2.0
#include "containers/discover/gpus/gpu_vendor.hpp"

namespace gpushm::discover {

std::string_view to_string(gpu_vendor vendor) noexcept {
  const std::string_view name = cdi_name(vendor);
  return name.substr(0, name.find('.'));
}

std::string_view cdi_name(gpu_vendor vendor) noexcept {
  switch (vendor) {
    case gpu_vendor::nvidia:
      return "nvidia.com";
    case gpu_vendor::amd:
      return "amd.com";
    case gpu_vendor::intel:
      return "intel.com";
  }
  return "unknown";
}

std::optional<gpu_vendor> parse_gpu_vendor(std::string_view text) noexcept {
  for (const auto each : {gpu_vendor::nvidia, gpu_vendor::amd, gpu_vendor::intel}) {
    if (text == cdi_name(each) || text == to_string(each)) {
      return each;
    }
  }
  return std::nullopt;
}

}  // namespace gpushm::discover
