// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <set>

#include "inspect/doctor/rules.hpp"

namespace gpushm::inspect::rules {

namespace {

/// "1 AMD GPU", "64 AMD GPUs" (or partitions); empty if there is none.
std::string count_of(const facts& facts, std::string_view vendor, const char* maker) {
  std::set<std::string> devices;
  for (const other_gpu_facts& each : facts.other_gpus) {
    if (each.vendor == vendor && each.device != "kfd") {
      devices.insert(each.device);
    }
  }
  return devices.empty()
             ? std::string()
             : fmt::format("{} {} {}", devices.size(), maker, devices.size() == 1 ? "GPU" : "GPUs");
}

/// The first node that this process cannot use: missing, or not to be opened.
const other_gpu_facts* find_unusable(const facts& facts) {
  const auto found = std::find_if(
      facts.other_gpus.begin(), facts.other_gpus.end(), [](const other_gpu_facts& each) {
        return !each.status || each.open_error != 0;
      });
  return found == facts.other_gpus.end() ? nullptr : &*found;
}

/// A vendor of GPUs here without a usable CDI document; empty if each has one.
std::string without_document(const facts& facts) {
  for (const other_gpu_facts& gpu : facts.other_gpus) {
    if (std::none_of(facts.cdi.begin(), facts.cdi.end(), [&](const cdi_facts& each) {
          return each.kind == gpu.vendor + ".com/gpu" && each.problem.empty();
        })) {
      return gpu.vendor;
    }
  }
  return {};
}

std::string remedy_for(const other_gpu_facts& node) {
  if (!node.status) {
    return node.vendor == "amd" ? "on the host: modprobe amdgpu; in a container: start it with "
                                  "--device amd.com/gpu=0 (CDI)"
                                : "on the host: modprobe xe or i915; in a container: start it with "
                                  "--device intel.com/gpu=0 (CDI)";
  }
  if (node.open_error == EACCES) {
    return fmt::format(
        "add the user to the node's group {} (usermod -aG; usually render and video)",
        node.status->gid);
  }
  return fmt::format("start the container with the GPU: --device {}.com/gpu=0 (CDI)", node.vendor);
}

}  // namespace

check other_gpus(const facts& facts) {
  if (facts.other_gpus.empty()) {
    return finding(verdict::not_applicable, "no GPU of AMD or Intel");
  }
  std::string seen = count_of(facts, "amd", "AMD");
  const std::string intel = count_of(facts, "intel", "Intel");
  seen += (seen.empty() || intel.empty() ? "" : " and ") + intel;
  constexpr const char* why =
      "gpushm describes these GPUs for containers, and does not share memory on them";
  if (const other_gpu_facts* node = find_unusable(facts)) {
    const int number = node->status ? node->open_error : ENOENT;
    return finding(verdict::note,
                   fmt::format("{}; {} {}", seen, node->path, why_not_opened(number)),
                   why,
                   remedy_for(*node));
  }
  seen += "; the nodes can be opened; ";
  // The documents are on the host.
  if (const std::string vendor = without_document(facts);
      !vendor.empty() && !in_container(facts.self)) {
    // A second document for the same devices would conflict with one that is there.
    const auto unusable =
        std::find_if(facts.cdi.begin(), facts.cdi.end(), [&](const cdi_facts& each) {
          return each.kind == vendor + ".com/gpu";
        });
    return finding(verdict::note,
                   fmt::format("{}no usable CDI document for {}.com/gpu", seen, vendor),
                   why,
                   unusable != facts.cdi.end()
                       ? cdi_remedy(facts, *unusable)
                       : fmt::format("gpushm cdi generate --vendor {} --output "
                                     "/var/run/cdi/{}.com-gpu.yaml",
                                     vendor,
                                     vendor));
  }
  return finding(verdict::ok,
                 seen + (in_container(facts.self) ? "in a container" : "with CDI documents"),
                 why);
}

}  // namespace gpushm::inspect::rules
