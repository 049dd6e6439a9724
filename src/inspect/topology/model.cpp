// SPDX-License-Identifier: Apache-2.0
#include "inspect/topology/model.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "base/files/syscall.hpp"
#include "base/text/text.hpp"

namespace gpushm::inspect {

namespace {

bool is_of(const gpu_facts& gpu, const std::string& uuid) {
  if (uuid.empty()) {
    return false;
  }
  const auto same = [&](const auto& each) { return each.uuid == uuid; };
  return gpu.uuid == uuid || std::any_of(gpu.cuda.begin(), gpu.cuda.end(), same) ||
         (gpu.nvml &&
          std::any_of(gpu.nvml->mig_instances.begin(), gpu.nvml->mig_instances.end(), same));
}

}  // namespace

std::vector<gpu_group> numa_groups(const facts& facts) {
  std::map<int, gpu_group> by_node;
  for (std::size_t i = 0; i < facts.gpus.size(); ++i) {
    gpu_group& group = by_node[facts.gpus[i].numa_node];
    group.numa_node = facts.gpus[i].numa_node;
    group.gpus.push_back(i);
  }
  std::vector<gpu_group> groups;
  groups.reserve(by_node.size());
  for (auto& [node, group] : by_node) {
    groups.push_back(std::move(group));
  }
  return groups;
}

const pair_facts* pair_of(const facts& facts, std::size_t reader, std::size_t owner) {
  const auto found =
      std::find_if(facts.pairs.begin(), facts.pairs.end(), [&](const pair_facts& each) {
        return each.from == reader && each.to == owner;
      });
  return found == facts.pairs.end() ? nullptr : &*found;
}

const measured_pair* measured_of(const topology& topology, std::size_t reader, std::size_t owner) {
  const auto& gpus = topology.machine.gpus;
  const auto found = std::find_if(
      topology.measured.begin(), topology.measured.end(), [&](const measured_pair& each) {
        return is_of(gpus[reader], each.from) && is_of(gpus[owner], each.to);
      });
  return found == topology.measured.end() ? nullptr : &*found;
}

std::vector<const open_segment*> segments_of(const topology& topology, std::size_t gpu) {
  std::vector<const open_segment*> own;
  for (const open_segment& each : topology.segments) {
    if (is_of(topology.machine.gpus[gpu], each.device)) {
      own.push_back(&each);
    }
  }
  return own;
}

std::vector<const open_segment*> other_segments(const topology& topology) {
  std::vector<const open_segment*> others;
  for (const open_segment& each : topology.segments) {
    const auto has = [&](const gpu_facts& gpu) { return is_of(gpu, each.device); };
    if (std::none_of(topology.machine.gpus.begin(), topology.machine.gpus.end(), has)) {
      others.push_back(&each);
    }
  }
  return others;
}

bool has_links(const facts& facts) {
  return std::any_of(facts.pairs.begin(), facts.pairs.end(), [](const pair_facts& each) {
    return each.links > 0;
  });
}

bool is_switched(const facts& facts) {
  return has_links(facts) &&
         std::all_of(facts.pairs.begin(), facts.pairs.end(), [](const pair_facts& each) {
           return each.from == each.to || each.links == 0 || each.through_switch;
         });
}

std::string gpu_name(const gpu_facts& gpu) {
  constexpr std::string_view vendor = "NVIDIA ";
  std::string name = base::printable(gpu.name);
  if (name.starts_with(vendor)) {
    name.erase(0, vendor.size());
  }
  return name.empty() ? "unknown" : name;
}

std::uint64_t gpu_bytes(const gpu_facts& gpu) {
  if (gpu.nvml && gpu.nvml->total_bytes > 0) {
    return gpu.nvml->total_bytes;
  }
  std::uint64_t sum = 0;
  for (const cuda_gpu_view& each : gpu.cuda) {
    sum += each.total_bytes;
  }
  return sum;
}

std::string short_address(const std::string& pci) {
  return base::printable(pci.starts_with("0000:") ? pci.substr(5) : pci);
}

std::string compute_text(const gpu_facts& gpu) {
  return gpu.cuda.empty() || gpu.cuda[0].compute_major < 0
             ? ""
             : fmt::format("{}.{}", gpu.cuda[0].compute_major, gpu.cuda[0].compute_minor);
}

std::string sharing_text(const gpu_facts& gpu) {
  if (gpu.sharing == "full") {
    return "whole";  // neither partitioned nor sliced
  }
  const std::string text = base::printable(gpu.sharing);
  return gpu.time_slices > 0 ? fmt::format("{} x{}", text, gpu.time_slices) : text;
}

std::string open_problem(const gpu_facts& gpu) {
  return gpu.open_error.value_or(0) == 0 ? std::string() : base::errno_text(*gpu.open_error);
}

std::string instance_name(const mig_instance_view& instance) {
  const std::string name = base::printable(instance.name);
  const auto mig = name.rfind("MIG ");
  return mig == std::string::npos ? name : name.substr(mig + 4);
}

std::string rate_text(double bytes_per_second) {
  const double giga = bytes_per_second / 1e9;
  return giga >= 1000 ? fmt::format("{:.2f} TB/s", giga / 1000)
         : giga < 10  ? fmt::format("{:.1f} GB/s", giga)
                      : fmt::format("{:.0f} GB/s", giga);
}

std::string no_gpu_text(const facts& facts) {
  std::string why = facts.driver.failure;
  if (why.empty()) {
    why = facts.driver.cuda.problem;
  }
  if (why.empty()) {
    why = facts.driver.nvml.problem;
  }
  return why.empty() ? "no GPU here" : "no GPU here: " + base::printable(why);
}

std::string driver_text(const facts& facts) {
  std::string version = facts.module_version;
  if (version.empty()) {
    version = facts.driver.nvml.driver_version;
  }
  std::string text = version.empty() ? "" : "driver " + base::printable(version);
  if (facts.driver.cuda.version > 0) {
    text += fmt::format("{}CUDA {}.{}",
                        text.empty() ? "" : ", ",
                        facts.driver.cuda.version / 1000,
                        facts.driver.cuda.version % 1000 / 10);
  }
  return text;
}

}  // namespace gpushm::inspect
