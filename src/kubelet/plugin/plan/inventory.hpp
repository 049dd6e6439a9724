// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "discover/inventory.hpp"

namespace gpushm::plugin {

/// How a MIG instance is cut, as "3g.20gb", "1c.3g.20gb", "1g.10gb+me".
struct instance {
  discover::mig_entry entry;
  std::string profile;
  std::uint64_t total_bytes = 0;
  bool operator==(const instance&) const = default;
};

struct board {
  discover::gpu_entry entry;
  std::string name;  ///< "NVIDIA H100 80GB HBM3"
  std::uint64_t total_bytes = 0;
  std::optional<std::int64_t> numa_node;
  std::vector<instance> instances;  ///< one for each of `entry.instances`
  bool operator==(const board&) const = default;
};

/// What a device plugin has to know of the machine's GPUs.
struct inventory {
  std::vector<board> boards;
  /// `closeness[a][b]`: how well boards a and b of `boards` reach each other. 100 for each NVLink
  /// between them or to the switches both are on; and 60 on one card, 50 under one PCIe switch, 40
  /// under several, 30 under one host bridge, 20 on one NUMA node, 10 anywhere else.
  std::vector<std::vector<unsigned int>> closeness;
  std::string driver_version;
  std::vector<std::string> left_out;  ///< a line for each board that does not answer
  std::string problem;                ///< why there are no boards; empty when there are some
  bool operator==(const inventory&) const = default;
};

/// Asks NVML, which `discover::ask_nvml` finds (`library` as there), and `sys_root` ("/sys") for
/// the NUMA nodes. Where there is no driver, no GPU, or none that answers: none, and the reason.
/// Blocks as long as NVML does. Throws nothing but std::bad_alloc.
[[nodiscard]] inventory take_inventory(const std::string& library = {},
                                       const std::string& sys_root = "/sys");

/// "3g.20gb" of NVML's name of an instance ("NVIDIA A100-SXM4-40GB MIG 3g.20gb"); nothing when the
/// name ends in no profile.
[[nodiscard]] std::optional<std::string> profile_of_name(const std::string& name);

/// The profile of an instance with so many slices and so much of the board's memory: a board's
/// memory is dealt out in eighths, and what is named is the eighths in whole GiB.
[[nodiscard]] std::string profile_of_slices(unsigned int compute_slices,
                                            unsigned int gpu_slices,
                                            std::uint64_t instance_bytes,
                                            std::uint64_t board_bytes);

}  // namespace gpushm::plugin
