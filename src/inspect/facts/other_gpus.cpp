// SPDX-License-Identifier: Apache-2.0
#include "inspect/facts/other_gpus.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "base/text/text.hpp"

namespace gpushm::inspect {

namespace {

bool is_node(std::string_view name) {
  for (const std::string_view stem : {"card", "renderD"}) {
    if (name.starts_with(stem) && base::number<unsigned int>(name.substr(stem.size()))) {
      return true;
    }
  }
  return false;
}

/// Empty for other makers.
std::string vendor_of(system& machine, const std::string& entry, std::string_view device) {
  // A partition of an AMD GPU is a platform device without a PCI vendor.
  if (device.starts_with("amdgpu_xcp")) {
    return "amd";
  }
  const std::string number(base::trim(machine.read(entry + "/device/vendor").value_or("")));
  return number == "0x1002" ? "amd" : number == "0x8086" ? "intel" : "";
}

}  // namespace

std::vector<other_gpu_facts> gather_other_gpus(system& machine) {
  std::vector<other_gpu_facts> gpus;
  for (const std::string& name : machine.list("/sys/class/drm")) {
    if (!is_node(name)) {
      continue;
    }
    const std::string entry = "/sys/class/drm/" + name;
    other_gpu_facts gpu;
    gpu.device = base::name_of(machine.link(entry + "/device").value_or(""));
    gpu.vendor = vendor_of(machine, entry, gpu.device);
    if (gpu.vendor.empty()) {
      continue;
    }
    gpu.path = "/dev/dri/" + name;
    gpus.push_back(std::move(gpu));
  }
  if (std::any_of(
          gpus.begin(), gpus.end(), [](const auto& each) { return each.vendor == "amd"; })) {
    gpus.push_back({"amd", "kfd", "/dev/kfd", {}, 0});
  }
  for (other_gpu_facts& each : gpus) {
    each.status = machine.status(each.path);
    if (!each.path.starts_with("/dev/dri/card")) {
      each.open_error = machine.open_error(each.path);
    }
  }
  return gpus;
}

}  // namespace gpushm::inspect
