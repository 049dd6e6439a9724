// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "containers/cdi/document/document.hpp"
#include "containers/discover/driver_files/findings.hpp"
#include "containers/discover/gpus/gpu_vendor.hpp"
#include "containers/discover/gpus/inventory.hpp"
#include "containers/discover/gpus/name_strategy.hpp"

namespace gpushm::discover {

struct generate_options {
  /// Whose GPUs to describe. For AMD and Intel: no driver files, and `driver_root` is only the
  /// directory that contains /dev and /sys.
  gpu_vendor source = gpu_vendor::nvidia;
  /// The root of the driver installation; paths in the container omit it.
  std::string driver_root = "/";
  /// The prefix of /dev on this machine; empty: `driver_root` if it contains /dev, else "/".
  std::string dev_root;
  std::string proc_root = "/proc";
  std::string sys_root = "/sys";
  /// The path of the hook program on the host.
  std::string hook_path;
  /// The cache of the linker; empty: etc/ld.so.cache below `driver_root`.
  std::string ldcache_path;
  std::vector<std::string> library_search_paths;  ///< below `driver_root`, searched first
  std::vector<name_strategy> strategies{name_strategy::index, name_strategy::uuid};
  std::string vendor = "nvidia.com";
  std::string device_class = "gpu";
  std::vector<std::string> device_ids;                ///< indices, UUIDs, "1:0"; empty: all
  std::set<std::string, std::less<>> disabled_hooks;  ///< "all" disables every hook
  bool all_device = true;
};

struct generated {
  cdi::document content;                ///< with the lowest version that suffices
  std::vector<std::string> found;       ///< a line for each kind of item
  std::vector<missing_items> missing;   ///< items not found; often harmless
  std::vector<std::string> incomplete;  ///< problems: omitted devices, stale nodes
  /// The missing ones of nvidiactl and nvidia-uvm, without which CUDA does not start, as paths on
  /// this machine.
  std::vector<std::string> missing_control_nodes;
};

/// Describes the GPUs and the driver of this machine, or of the trees in the options. For NVIDIA's
/// it queries NVML, for others it reads sysfs, and blocks while it does. A GPU or MIG instance that
/// does not answer is left out, with a line in `incomplete`. Throws `error`: no driver library, no
/// GPU, an unknown device ID, or no usable device.
[[nodiscard]] generated generate(const generate_options& options);

/// The same for NVIDIA's GPUs that the caller lists.
[[nodiscard]] generated generate(const generate_options& options,
                                 const std::vector<gpu_entry>& gpus);

/// The prefix of /dev: `options.dev_root`, or the default that is described there.
[[nodiscard]] std::string find_dev_root(const generate_options& options);

/// The path, for this process, of the NVML of the driver in the options; empty if there is none.
/// Reads directories and the linker's cache.
[[nodiscard]] std::string find_nvml(const generate_options& options);

}  // namespace gpushm::discover
