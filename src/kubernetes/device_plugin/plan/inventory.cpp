// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/device_plugin/plan/inventory.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "base/files/file.hpp"
#include "base/text/text.hpp"
#include "gpu/driver/device_text.hpp"
#include "gpu/driver/nvml.hpp"
#include "gpushm/error.hpp"

namespace gpushm::device_plugin {

namespace {

using driver::nvml_library;
using text_buffer = std::array<char, 128>;

constexpr std::uint64_t gibibyte = 1ULL << 30U;

std::string name_of(const nvml_library& nvml, nvml::nvmlDevice_t device) {
  text_buffer text{};
  const auto result =
      nvml->nvmlDeviceGetName(device, text.data(), static_cast<unsigned int>(text.size()) - 1);
  return result == nvml::NVML_SUCCESS ? text.data() : std::string();
}

std::uint64_t bytes_of(const nvml_library& nvml, nvml::nvmlDevice_t device) {
  nvml::nvmlMemory_t memory{};
  return nvml->nvmlDeviceGetMemoryInfo(device, &memory) == nvml::NVML_SUCCESS ? memory.total : 0;
}

// The kernel reports -1 for a device without NUMA affinity.
std::optional<std::int64_t> numa_node_of(const std::string& sys_root, const std::string& pci) {
  const auto text =
      base::read_small_file(fmt::format("{}/bus/pci/devices/{}/numa_node", sys_root, pci));
  const auto node = base::number<std::int64_t>(base::trim(text.value_or(std::string())));
  return node && *node >= 0 ? node : std::nullopt;
}

instance describe_instance(const nvml_library& nvml,
                           nvml::nvmlDevice_t parent,
                           const discover::mig_entry& entry,
                           std::uint64_t gpu_bytes) {
  instance out;
  out.entry = entry;
  nvml::nvmlDevice_t device = nullptr;
  if (nvml->nvmlDeviceGetMigDeviceHandleByIndex(parent, entry.index, &device) !=
      nvml::NVML_SUCCESS) {
    return out;
  }
  out.total_bytes = bytes_of(nvml, device);
  // The name includes media engines and graphics ("+me"); the attributes do not.
  if (const auto named = profile_of_name(name_of(nvml, device))) {
    out.profile = *named;
    return out;
  }
  nvml::nvmlDeviceAttributes_t about{};
  if (nvml->nvmlDeviceGetAttributes_v2(device, &about) == nvml::NVML_SUCCESS) {
    out.profile = profile_of_slices(about.computeInstanceSliceCount,
                                    about.gpuInstanceSliceCount,
                                    about.memorySizeMB << 20U,
                                    gpu_bytes);
  }
  return out;
}

/// The NVLinks of a GPU: how many lead to each PCI address and to switches.
struct links {
  std::map<std::string, unsigned int> to_gpus;
  std::set<std::string> switches;
  unsigned int to_switches = 0;
};

links links_of(const nvml_library& nvml, nvml::nvmlDevice_t device) {
  links links;
  for (unsigned int link = 0; link < nvml::nvlink_max_links; ++link) {
    nvml::nvmlEnableState_t active{};
    if (nvml->nvmlDeviceGetNvLinkState(device, link, &active) != nvml::NVML_SUCCESS) {
      break;
    }
    nvml::nvmlPciInfo_t pci{};
    if (active != nvml::NVML_FEATURE_ENABLED ||
        nvml->nvmlDeviceGetNvLinkRemotePciInfo_v2(device, link, &pci) != nvml::NVML_SUCCESS) {
      continue;
    }
    const std::string address =
        driver::normal_pci_address(static_cast<const char*>(pci.busId)).value_or(std::string());
    nvml::nvmlIntNvLinkDeviceType_t kind{};
    if (nvml->nvmlDeviceGetNvLinkRemoteDeviceType(device, link, &kind) == nvml::NVML_SUCCESS &&
        kind == nvml::NVML_NVLINK_DEVICE_TYPE_SWITCH) {
      ++links.to_switches;
      links.switches.insert(address);
    } else {
      ++links.to_gpus[address];
    }
  }
  return links;
}

// All GPUs of a machine are on the same switches, so switch addresses are not compared: in a
// virtual machine they differ between GPUs.
unsigned int links_between(const links& a, const links& b, const std::string& address_of_b) {
  const auto direct = a.to_gpus.find(address_of_b);
  return (direct == a.to_gpus.end() ? 0 : direct->second) + std::min(a.to_switches, b.to_switches);
}

unsigned int nearness(const nvml_library& nvml, nvml::nvmlDevice_t a, nvml::nvmlDevice_t b) {
  nvml::nvmlGpuTopologyLevel_t level{};
  if (nvml->nvmlDeviceGetTopologyCommonAncestor(a, b, &level) != nvml::NVML_SUCCESS) {
    return 0;
  }
  switch (level) {
    case nvml::NVML_TOPOLOGY_INTERNAL:
      return 60;
    case nvml::NVML_TOPOLOGY_SINGLE:
      return 50;
    case nvml::NVML_TOPOLOGY_MULTIPLE:
      return 40;
    case nvml::NVML_TOPOLOGY_HOSTBRIDGE:
      return 30;
    case nvml::NVML_TOPOLOGY_NODE:
      return 20;
    case nvml::NVML_TOPOLOGY_SYSTEM:
      return 10;
  }
  return 10;
}

// Fallback to the kernel's NUMA nodes when NVML does not report the topology.
unsigned int nearness_by_numa(const gpu_info& a, const gpu_info& b) {
  return a.numa_node && a.numa_node == b.numa_node ? 20 : 10;
}

void measure_closeness(const nvml_library& nvml,
                       const std::vector<nvml::nvmlDevice_t>& devices,
                       inventory& out) {
  std::vector<links> links;
  links.reserve(devices.size());
  for (nvml::nvmlDevice_t const each : devices) {
    links.push_back(links_of(nvml, each));
  }
  const std::size_t count = devices.size();
  out.closeness.assign(count, std::vector<unsigned int>(count, 0));
  constexpr unsigned int per_link = 100;
  for (std::size_t a = 0; a < count; ++a) {
    for (std::size_t b = a + 1; b < count; ++b) {
      const unsigned int near = nearness(nvml, devices[a], devices[b]);
      const unsigned int score =
          per_link * links_between(links[a], links[b], out.gpus[b].entry.pci_address) +
          (near != 0 ? near : nearness_by_numa(out.gpus[a], out.gpus[b]));
      out.closeness[a][b] = score;
      out.closeness[b][a] = score;
    }
  }
}

void take(const std::string& library, const std::string& sys_root, inventory& out) {
  const auto entries = discover::query_nvml(library, &out.left_out);
  const nvml_library& nvml = nvml_library::instance();
  out.driver_version = nvml.driver_version();
  std::vector<nvml::nvmlDevice_t> devices;
  for (const discover::gpu_entry& entry : entries) {
    nvml::nvmlDevice_t device = nullptr;
    nvml_library::check(nvml->nvmlDeviceGetHandleByIndex_v2(entry.index, &device),
                        fmt::format("GPU {}", entry.index),
                        "nvmlDeviceGetHandleByIndex");
    gpu_info info;
    info.entry = entry;
    info.name = name_of(nvml, device);
    info.total_bytes = bytes_of(nvml, device);
    info.numa_node = numa_node_of(sys_root, entry.pci_address);
    for (const discover::mig_entry& each : entry.instances) {
      info.instances.push_back(describe_instance(nvml, device, each, info.total_bytes));
    }
    devices.push_back(device);
    out.gpus.push_back(std::move(info));
  }
  measure_closeness(nvml, devices, out);
  if (out.gpus.empty()) {
    out.problem = out.left_out.empty() ? "NVML reports no GPU" : "no GPU responds";
  }
}

bool is_profile(std::string_view text) {
  // [Nc.]Ng.Ngb, plus the driver's suffix after a sign.
  const std::size_t sign = text.find_first_of("+-");
  const auto parts = base::split(text.substr(0, sign), ".");
  if (parts.size() < 2 || parts.size() > 3) {
    return false;
  }
  const auto counts = [](std::string_view part, std::string_view unit) {
    return part.ends_with(unit) &&
           base::number<unsigned int>(part.substr(0, part.size() - unit.size())).has_value();
  };
  return counts(parts.back(), "gb") && counts(parts[parts.size() - 2], "g") &&
         (parts.size() == 2 || counts(parts.front(), "c"));
}

}  // namespace

inventory take_inventory(const std::string& library, const std::string& sys_root) {
  inventory out;
  try {
    take(library, sys_root, out);
  } catch (const error& failure) {
    out = {};
    out.problem = failure.what();
  }
  return out;
}

std::optional<std::string> profile_of_name(const std::string& name) {
  constexpr std::string_view mark = "MIG ";
  const std::size_t at = name.rfind(mark);
  if (at == std::string::npos) {
    return std::nullopt;
  }
  const std::string_view profile = base::trim(std::string_view(name).substr(at + mark.size()));
  return is_profile(profile) ? std::optional(std::string(profile)) : std::nullopt;
}

std::string profile_of_slices(unsigned int compute_slices,
                              unsigned int gpu_slices,
                              std::uint64_t instance_bytes,
                              std::uint64_t gpu_bytes) {
  constexpr std::uint64_t eighths = 8;
  const std::uint64_t gpu_gib = (gpu_bytes + gibibyte - 1) / gibibyte;
  const std::uint64_t parts =
      gpu_bytes == 0 ? 0 : (instance_bytes * eighths + gpu_bytes - 1) / gpu_bytes;
  const std::uint64_t gib = (parts * gpu_gib + eighths / 2) / eighths;
  const std::string gpu_part = fmt::format("{}g.{}gb", gpu_slices, gib);
  return compute_slices == gpu_slices ? gpu_part : fmt::format("{}c.{}", compute_slices, gpu_part);
}

}  // namespace gpushm::device_plugin
