// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "inspect/facts/system.hpp"

namespace gpushm::inspect {

/// A device node of a GPU of AMD or Intel, or /dev/kfd of AMD's compute driver.
struct other_gpu_facts {
  std::string vendor;                 ///< "amd", "intel"
  std::string device;                 ///< "0000:03:00.0"; "kfd"; empty if unknown
  std::string path;                   ///< "/dev/dri/renderD128"
  std::optional<file_status> status;  ///< nullopt: missing
  int open_error = 0;  ///< errno of opening it; 0: it can be opened. Cards are not opened: the
                       ///< first process that opens one controls its screens
};

/// The DRM nodes of AMD's and Intel's GPUs that sysfs lists, sorted by name, then /dev/kfd if there
/// is a GPU of AMD.
[[nodiscard]] std::vector<other_gpu_facts> gather_other_gpus(system& machine);

}  // namespace gpushm::inspect
