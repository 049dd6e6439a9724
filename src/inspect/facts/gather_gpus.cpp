// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <set>

#include "base/text/text.hpp"
#include "gpu/driver/device_text.hpp"
#include "inspect/facts/gather_parts.hpp"

namespace gpushm::inspect {

namespace {

constexpr const char* kernel_gpus = "/proc/driver/nvidia/gpus";

// One direction of one link, bytes per second, by NVLink generation: 20, 25, 25, 25 and 50 GB/s
// (NVIDIA's whitepapers of P100, V100, A100, H100, B200).
double link_bytes_per_second(int generation) {
  switch (generation) {
    case 1:
      return 20e9;
    case 2:
    case 3:
    case 4:
      return 25e9;
    case 5:
      return 50e9;
    default:
      return 0;
  }
}

/// The NVLink generation of an nvmlNvlinkVersion_t (nvml.h).
int link_generation(int version) {
  switch (version) {
    case 1:
      return 1;
    case 2:
    case 3:
      return 2;
    case 4:
    case 5:
      return 3;
    case 6:
      return 4;
    case 7:
      return 5;
    default:
      return -1;
  }
}

gpu_facts& gpu_at(std::vector<gpu_facts>& gpus, const std::string& pci_address) {
  for (gpu_facts& each : gpus) {
    if (each.pci_address == pci_address) {
      return each;
    }
  }
  gpu_facts& added = gpus.emplace_back();
  added.pci_address = pci_address;
  return added;
}

void add_from_kernel(system& machine, std::vector<gpu_facts>& gpus) {
  for (const std::string& address : machine.list(kernel_gpus)) {
    const std::string text = machine.read(fmt::format("{}/{}/information", kernel_gpus, address))
                                 .value_or(std::string());
    gpu_facts& gpu =
        gpu_at(gpus, driver::normal_pci_address(address).value_or(std::string(address)));
    const auto parsed = driver::parse_gpu_information(text);
    gpu.minor = parsed.minor;
    gpu.uuid = parsed.uuid;
    gpu.name = std::string(base::field(text, "Model").value_or(""));
  }
}

void add_from_driver(const driver_view& driver, std::vector<gpu_facts>& gpus) {
  for (const nvml_gpu_view& each : driver.nvml.gpus) {
    gpu_facts& gpu = gpu_at(gpus, each.pci_address);
    gpu.nvml = each;
    gpu.uuid = each.uuid.empty() ? gpu.uuid : each.uuid;
    gpu.name = each.name.empty() ? gpu.name : each.name;
    gpu.minor = each.minor >= 0 ? each.minor : gpu.minor;
  }
  for (const cuda_gpu_view& each : driver.cuda.gpus) {
    gpu_facts& gpu = gpu_at(gpus, each.pci_address);
    gpu.cuda.push_back(each);
    if (gpu.uuid.empty() && each.uuid.starts_with("GPU-")) {
      gpu.uuid = each.uuid;
    }
    gpu.name = gpu.name.empty() ? each.name : gpu.name;
  }
}

void add_place(system& machine, gpu_facts& gpu) {
  const std::string device = "/sys/bus/pci/devices/" + gpu.pci_address;
  gpu.numa_node =
      base::number<int>(base::trim(machine.read(device + "/numa_node").value_or(""))).value_or(-1);
  // "../../../devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:18:00.0"
  const std::string link = machine.link(device).value_or(std::string());
  for (const std::string_view part : base::split(link, "/")) {
    if (part != gpu.pci_address &&
        (part.starts_with("pci") || driver::normal_pci_address(part).has_value())) {
      gpu.pci_path.emplace_back(part);
    }
  }
}

/// The number of replicas of each GPU that a device plugin advertises, from the ids "GPU-…::3" in
/// the kubelet's checkpoint. Readable only by root on the node.
std::map<std::string, int> time_slices(system& machine) {
  std::map<std::string, int> entries;
  const std::string text =
      machine.read("/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint")
          .value_or(std::string());
  std::size_t at = 0;
  while ((at = text.find("GPU-", at)) != std::string::npos) {
    const std::size_t end = std::min(text.find_first_of("\"\\,", at), text.size());
    const std::string id = text.substr(at, end - at);
    const std::size_t colons = id.find("::");
    if (colons != std::string::npos) {
      const int replica = base::number<int>(std::string_view(id).substr(colons + 2)).value_or(0);
      int& most = entries[id.substr(0, colons)];
      most = std::max(most, replica + 1);
    }
    at = end;
  }
  return entries;
}

std::string sharing_of(const gpu_facts& gpu, bool mps) {
  if (gpu.nvml && gpu.nvml->virtualization == "vgpu") {
    return "vgpu";
  }
  const bool instances =
      std::any_of(gpu.cuda.begin(), gpu.cuda.end(), [](const cuda_gpu_view& each) {
        return each.uuid.starts_with("MIG-");
      });
  if (instances || (gpu.nvml && gpu.nvml->mig == true)) {
    return "mig";
  }
  if (gpu.time_slices > 1) {
    return "time-sliced";
  }
  return mps ? "mps" : "full";
}

/// The distance between two GPUs without NVML, from their common bridges.
std::string distance_by_path(const gpu_facts& a, const gpu_facts& b) {
  if (a.pci_path.empty() || b.pci_path.empty()) {
    return {};
  }
  if (a.pci_path.front() != b.pci_path.front()) {
    return a.numa_node == b.numa_node && a.numa_node >= 0 ? "NODE" : "SYS";
  }
  std::size_t common = 0;
  while (common < a.pci_path.size() && common < b.pci_path.size() &&
         a.pci_path[common] == b.pci_path[common]) {
    ++common;
  }
  if (common == 1) {
    return "PHB";
  }
  const bool nearest = common == a.pci_path.size() && common == b.pci_path.size();
  return nearest ? "PIX" : "PXB";
}

std::string distance_of(const nvml_view& nvml, const gpu_facts& a, const gpu_facts& b) {
  static const std::map<std::string, std::string> names{{"internal", "PIX"},
                                                        {"single switch", "PIX"},
                                                        {"multiple switches", "PXB"},
                                                        {"host bridge", "PHB"},
                                                        {"node", "NODE"},
                                                        {"system", "SYS"}};
  if (a.nvml && b.nvml) {
    for (const nvml_pair_view& each : nvml.pairs) {
      if ((each.from == a.nvml->index && each.to == b.nvml->index) ||
          (each.to == a.nvml->index && each.from == b.nvml->index)) {
        const auto found = names.find(each.distance);
        return found == names.end() ? std::string() : found->second;
      }
    }
  }
  return distance_by_path(a, b);
}

void add_links(const gpu_facts& a, const gpu_facts& b, pair_facts& pair) {
  if (!a.nvml || !b.nvml) {
    return;
  }
  int to_switches = 0;
  int version = -1;
  for (const nvlink_view& each : a.nvml->links) {
    if (!each.active) {
      continue;
    }
    version = std::max(version, each.version);
    if (each.remote_kind == "switch") {
      ++to_switches;
    } else if (each.remote_pci == b.pci_address) {
      ++pair.links;
    }
  }
  const auto of_other =
      std::count_if(b.nvml->links.begin(), b.nvml->links.end(), [](const nvlink_view& each) {
        return each.active && each.remote_kind == "switch";
      });
  if (pair.links == 0 && to_switches > 0 && of_other > 0) {
    pair.links = std::min(to_switches, static_cast<int>(of_other));
    pair.through_switch = true;
  }
  if (pair.links > 0) {
    pair.link_version = link_generation(version);
    pair.link_bytes_per_second = pair.links * link_bytes_per_second(pair.link_version);
  }
}

}  // namespace

std::map<std::string, std::uint32_t> gather_majors(system& machine) {
  std::map<std::string, std::uint32_t> entries;
  const std::string text = machine.read("/proc/devices").value_or(std::string());
  for (const std::string_view line : base::lines_of(text)) {
    if (line.starts_with("Block devices")) {
      break;
    }
    const auto words = base::split(line, " ");
    if (words.size() == 2 && words[1].starts_with("nvidia")) {
      entries[std::string(words[1])] = base::number<std::uint32_t>(words[0]).value_or(0);
    }
  }
  return entries;
}

std::vector<device_node_facts> gather_nodes(system& machine,
                                            const std::map<std::string, std::uint32_t>& majors) {
  std::set<std::string> paths{"/dev/nvidiactl", "/dev/nvidia-uvm"};
  for (const std::string& name : machine.list("/dev")) {
    if (name.starts_with("nvidia") && name != "nvidia-caps" &&
        name != "nvidia-caps-imex-channels") {
      paths.insert("/dev/" + name);
    }
  }
  for (const char* directory : {"/dev/nvidia-caps/", "/dev/nvidia-caps-imex-channels/"}) {
    for (const std::string& name : machine.list(directory)) {
      paths.insert(directory + name);
    }
  }
  const auto major_of = [&](const std::string& driver) {
    const auto found = majors.find(driver);
    return found == majors.end() ? std::nullopt : std::optional(found->second);
  };
  std::vector<device_node_facts> nodes;
  for (const std::string& path : paths) {
    device_node_facts node;
    node.path = path;
    node.status = machine.status(path);
    if (node.status && node.status->type == "directory") {
      continue;
    }
    node.open_error = machine.open_error(path);
    if (path.starts_with("/dev/nvidia-uvm")) {
      node.expected_major = major_of("nvidia-uvm");
    } else if (path.starts_with("/dev/nvidia-caps-imex-channels")) {
      node.expected_major = major_of("nvidia-caps-imex-channels");
    } else if (path.starts_with("/dev/nvidia-caps")) {
      node.expected_major = major_of("nvidia-caps");
    } else {
      // Some driver versions call it "nvidia-frontend".
      node.expected_major =
          major_of("nvidia-frontend") ? major_of("nvidia-frontend") : major_of("nvidia");
    }
    nodes.push_back(std::move(node));
  }
  return nodes;
}

std::vector<gpu_facts> gather_gpus(system& machine, const facts& facts) {
  std::vector<gpu_facts> gpus;
  add_from_kernel(machine, gpus);
  add_from_driver(facts.driver, gpus);
  std::sort(gpus.begin(), gpus.end(), [](const gpu_facts& a, const gpu_facts& b) {
    return a.pci_address < b.pci_address;
  });
  const auto slices = time_slices(machine);
  for (gpu_facts& each : gpus) {
    add_place(machine, each);
    if (each.minor >= 0) {
      each.open_error = ENOENT;
      const std::string path = fmt::format("/dev/nvidia{}", each.minor);
      for (const device_node_facts& node : facts.nodes) {
        if (node.path == path) {
          each.open_error = node.open_error;
        }
      }
    }
    const auto found = slices.find(each.uuid);
    each.time_slices = found == slices.end() ? 0 : found->second;
    each.sharing = sharing_of(each, facts.mps);
  }
  return gpus;
}

std::vector<pair_facts> gather_pairs(const facts& facts) {
  std::vector<pair_facts> pairs;
  for (std::size_t from = 0; from < facts.gpus.size(); ++from) {
    for (std::size_t to = 0; to < facts.gpus.size(); ++to) {
      if (from == to) {
        continue;
      }
      const gpu_facts& a = facts.gpus[from];
      const gpu_facts& b = facts.gpus[to];
      pair_facts pair;
      pair.from = from;
      pair.to = to;
      if (!a.cuda.empty() && !b.cuda.empty()) {
        for (const cuda_pair_view& each : facts.driver.cuda.pairs) {
          if (each.from == a.cuda.front().ordinal && each.to == b.cuda.front().ordinal) {
            pair.access = each.access;
            pair.native_atomics = each.native_atomics;
            pair.performance_rank = each.performance_rank;
          }
        }
      }
      add_links(a, b, pair);
      pair.pcie_distance = distance_of(facts.driver.nvml, a, b);
      pairs.push_back(std::move(pair));
    }
  }
  return pairs;
}

}  // namespace gpushm::inspect
