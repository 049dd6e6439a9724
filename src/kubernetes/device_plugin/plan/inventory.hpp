// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "containers/discover/gpus/inventory.hpp"

namespace gpushm::device_plugin {

/// A MIG instance. `profile` is its MIG profile: "3g.20gb", "1c.3g.20gb", "1g.10gb+me".
struct instance {
  discover::mig_entry entry;
  std::string profile;
  std::uint64_t total_bytes = 0;
  bool operator==(const instance&) const = default;
};

struct gpu_info {
  discover::gpu_entry entry;
  std::string name;  ///< "NVIDIA H100 80GB HBM3"
  std::uint64_t total_bytes = 0;
  std::optional<std::int64_t> numa_node;
  std::vector<instance> instances;  ///< one for each of `entry.instances`
  bool operator==(const gpu_info&) const = default;
};

/// The properties of the machine's GPUs that a device plugin needs.
struct inventory {
  std::vector<gpu_info> gpus;
  /// `closeness[a][b]`: how closely GPUs a and b of `gpus` are connected. 100 for each NVLink
  /// between them or to switches that both are connected to; plus 60 on one card, 50 under one PCIe
  /// switch, 40 under several, 30 under one host bridge, 20 on one NUMA node, 10 otherwise.
  std::vector<std::vector<unsigned int>> closeness;
  std::string driver_version;
  std::vector<std::string> left_out;  ///< a line for each GPU that does not respond
  std::string problem;                ///< why `gpus` is empty; else empty
  bool operator==(const inventory&) const = default;
};

/// Queries NVML, located by `discover::query_nvml` (`library` as there), and `sys_root` ("/sys")
/// for NUMA nodes. Returns no GPUs and the reason if there is no driver or no GPU that responds.
/// Blocks as long as NVML does. Throws only std::bad_alloc.
[[nodiscard]] inventory take_inventory(const std::string& library = {},
                                       const std::string& sys_root = "/sys");

/// "3g.20gb" from NVML's name of an instance ("NVIDIA A100-SXM4-40GB MIG 3g.20gb"); empty when the
/// name does not end in a profile.
[[nodiscard]] std::optional<std::string> profile_of_name(const std::string& name);

/// The profile of an instance with these slices and this memory: a GPU's memory is partitioned in
/// eighths, and the profile names the size of the instance's eighths in whole GiB.
[[nodiscard]] std::string profile_of_slices(unsigned int compute_slices,
                                            unsigned int gpu_slices,
                                            std::uint64_t instance_bytes,
                                            std::uint64_t gpu_bytes);

}  // namespace gpushm::device_plugin
