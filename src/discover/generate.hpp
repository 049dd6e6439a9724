// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "cdi/document/document.hpp"
#include "discover/findings.hpp"
#include "discover/inventory.hpp"
#include "discover/name_strategy.hpp"

namespace gpushm::discover {

struct generate_options {
  /// Where the driver is installed; paths in the container leave it out.
  std::string driver_root = "/";
  /// What stands before /dev on this machine; empty: `driver_root` when it has a /dev, else "/".
  std::string dev_root;
  std::string proc_root = "/proc";
  std::string sys_root = "/sys";
  /// The program that serves the hooks, as the host will see it.
  std::string hook_path;
  /// Empty: etc/ld.so.cache below `driver_root`.
  std::string ldcache_path;
  std::vector<std::string> library_search_paths;  ///< below `driver_root`, before the usual ones
  std::vector<name_strategy> strategies{name_strategy::index, name_strategy::uuid};
  std::string vendor = "nvidia.com";
  std::string device_class = "gpu";
  std::vector<std::string> device_ids;                ///< indices, UUIDs, "1:0"; empty: all
  std::set<std::string, std::less<>> disabled_hooks;  ///< "all" disables each
  bool all_device = true;
};

struct generated {
  cdi::document content;                ///< with the lowest version that has all it uses
  std::vector<std::string> found;       ///< a line for each kind of thing
  std::vector<absent_things> missing;   ///< what was looked for and is not there; often harmless
  std::vector<std::string> incomplete;  ///< what is wrong: devices left out, nodes out of date
};

/// Describes the GPUs and the driver of this machine, or of the trees that the options name. Asks
/// NVML and blocks as long as that does. Throws `error`: no driver library, no GPU, an id that no
/// device has, no device that can be used.
[[nodiscard]] generated generate(const generate_options& options);

/// The same for boards that the caller knows.
[[nodiscard]] generated generate(const generate_options& options,
                                 const std::vector<gpu_entry>& boards);

/// The path of the NVML that belongs to the driver which the options name, as this process sees it;
/// empty when there is none. Reads directories and the linker's cache.
[[nodiscard]] std::string find_nvml(const generate_options& options);

}  // namespace gpushm::discover
