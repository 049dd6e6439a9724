// SPDX-License-Identifier: Apache-2.0
#pragma once

// The parts of `gather`.

#include <string>
#include <vector>

#include "inspect/facts/facts.hpp"

namespace gpushm::inspect {

/// The process `pid`, or this process for "self".
[[nodiscard]] process_facts gather_process(system& machine, const std::string& pid);

/// Every NVIDIA node in /dev, and the nodes that every GPU user needs, even if missing.
[[nodiscard]] std::vector<device_node_facts> gather_nodes(
    system& machine, const std::map<std::string, std::uint32_t>& majors);
/// "nvidia-uvm" → 511, from /proc/devices.
[[nodiscard]] std::map<std::string, std::uint32_t> gather_majors(system& machine);

/// GPUs, ordered by PCI address. Needs `nodes`, `driver` and `mps` of `facts`.
[[nodiscard]] std::vector<gpu_facts> gather_gpus(system& machine, const facts& facts);
/// Needs `gpus` and `driver` of `facts`. Pure.
[[nodiscard]] std::vector<pair_facts> gather_pairs(const facts& facts);

/// SELinux, and the labels of `nodes`.
[[nodiscard]] selinux_facts gather_selinux(system& machine,
                                           const std::vector<device_node_facts>& nodes);

/// Fills in platform and model. Needs `kernel`, `nodes` and `device_majors` of `facts`.
void gather_platform(system& machine, facts& facts);

/// Fills in kernel module, libraries and toolkits. Needs `driver` of `facts`.
void gather_software(system& machine, facts& facts);

/// Every document in the CDI directories. Needs `libcuda_version`.
[[nodiscard]] std::vector<cdi_facts> gather_cdi(system& machine);

}  // namespace gpushm::inspect
