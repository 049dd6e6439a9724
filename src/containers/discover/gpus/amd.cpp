// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "base/text/text.hpp"
#include "containers/discover/gpus/drm_gpus.hpp"

namespace gpushm::discover {

namespace {

constexpr const char* kfd_nodes = "/class/kfd/kfd/topology/nodes";
constexpr std::size_t max_properties_bytes = std::size_t{16} << 10U;  // about 1 KiB on MI300X
// The bits of the function in a bus address. In KFD's location they number the partitions.
constexpr std::uint32_t function_bits = 3;
constexpr std::uint32_t bus_and_device_bits = 0xffff;

/// What KFD tells about a GPU or partition.
struct kfd_gpu {
  std::uint32_t minor = 0;  ///< of its render node
  std::uint32_t domain = 0;
  std::uint32_t place = 0;  ///< bus and device on it
  std::uint64_t unique_id = 0;
  [[nodiscard]] auto order() const { return std::tuple(domain, place, minor); }
};

std::map<std::string, std::uint64_t, std::less<>> properties_of(std::string_view text) {
  std::map<std::string, std::uint64_t, std::less<>> properties;
  for (const std::string_view line : base::lines_of(text)) {
    const auto words = base::split(line, " \t\r");
    const auto value = words.size() == 2 ? base::number<std::uint64_t>(words[1]) : std::nullopt;
    if (value) {
      properties.emplace(words[0], *value);
    }
  }
  return properties;
}

/// Reads the GPUs by the name of the render node. CPUs are also nodes of the topology, without a
/// render node.
std::map<std::string, kfd_gpu> read_topology(const root_view& sys) {
  std::map<std::string, kfd_gpu> entries;
  for (const std::string& name : sys.names(kfd_nodes)) {
    const auto text =
        read_file_in(sys, fmt::format("{}/{}/properties", kfd_nodes, name), max_properties_bytes);
    const auto properties = properties_of(text ? std::string_view(*text) : std::string_view());
    const auto value = [&](std::string_view key) {
      const auto each = properties.find(key);
      return each == properties.end() ? 0 : each->second;
    };
    const std::string node = fmt::format("renderD{}", value("drm_render_minor"));
    const auto minor = render_minor(node);
    if (!minor || *minor == 0) {
      continue;
    }
    kfd_gpu gpu;
    gpu.minor = *minor;
    gpu.domain = static_cast<std::uint32_t>(value("domain"));
    gpu.place =
        (static_cast<std::uint32_t>(value("location_id")) & bus_and_device_bits) >> function_bits;
    gpu.unique_id = value("unique_id");
    entries.emplace(node, gpu);
  }
  return entries;
}

/// The compute GPU of `device`; nullptr if KFD does not list any of its render nodes.
const kfd_gpu* find_kfd(const drm_device& device, const std::map<std::string, kfd_gpu>& topology) {
  for (const std::string& node : device.nodes) {
    if (const auto found = topology.find(node); found != topology.end()) {
      return &found->second;
    }
  }
  return nullptr;
}

std::string address_of(const kfd_gpu& gpu) {
  constexpr std::uint32_t device_mask = 0x1f;
  constexpr std::uint32_t device_bits = 5;
  return fmt::format(
      "{:04x}:{:02x}:{:02x}.0", gpu.domain, gpu.place >> device_bits, gpu.place & device_mask);
}

struct compute_device {
  const drm_device* device;
  const kfd_gpu* kfd;
};

std::string summary_of(std::size_t parts, std::size_t packages) {
  const std::string whole = count_text(packages, "AMD GPU", "AMD GPUs");
  return parts == packages
             ? whole
             : fmt::format("{} of {}", count_text(parts, "partition", "partitions"), whole);
}

}  // namespace

drm_gpus find_amd_gpus(const root_view& sys) {
  drm_gpus result;
  const auto topology = read_topology(sys);
  const std::vector<drm_device> drm_devices = find_drm_devices(sys);
  std::vector<compute_device> devices;
  std::vector<std::string> not_listed;
  for (const drm_device& device : drm_devices) {
    // Partitions have nodes at all times; KFD lists those in use.
    if (device.vendor != pci_vendor_amd || !is_usable(device, {"amdgpu"}, result.report)) {
      continue;
    }
    if (const kfd_gpu* kfd = find_kfd(device, topology)) {
      devices.push_back({&device, kfd});
    } else if (device.is_pci) {
      not_listed.push_back(device.name);
    }
  }
  if (!not_listed.empty()) {
    result.report.missing.push_back({"compute nodes (KFD) of", std::move(not_listed)});
  }
  std::sort(
      devices.begin(), devices.end(), [](const compute_device& left, const compute_device& right) {
        return left.kfd->order() < right.kfd->order();
      });
  std::map<std::uint64_t, int> times;
  std::set<std::string> packages;
  for (const compute_device& each : devices) {
    ++times[each.kfd->unique_id];
    packages.insert(address_of(*each.kfd));
  }
  for (const compute_device& each : devices) {
    drm_gpu gpu;
    gpu.index = static_cast<unsigned int>(result.gpus.size());
    gpu.address = each.device->is_pci ? each.device->name : address_of(*each.kfd);
    // The partitions of a GPU share its ID.
    if (each.kfd->unique_id != 0 && times[each.kfd->unique_id] == 1) {
      gpu.unique_name = fmt::format("GPU-{:016x}", each.kfd->unique_id);
    }
    for (const std::string& node : each.device->nodes) {
      gpu.nodes.push_back(std::string("/dev/dri/").append(node));
    }
    gpu.nodes.emplace_back("/dev/kfd");
    result.gpus.push_back(std::move(gpu));
  }
  result.summary = summary_of(result.gpus.size(), packages.size());
  return result;
}

}  // namespace gpushm::discover
