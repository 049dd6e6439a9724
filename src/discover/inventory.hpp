// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gpushm::discover {

struct mig_entry {
  unsigned int index = 0;  ///< as NVML numbers the instances of a board
  std::string uuid;
  unsigned int gpu_instance = 0;
  unsigned int compute_instance = 0;
  bool operator==(const mig_entry&) const = default;
};

struct gpu_entry {
  unsigned int index = 0;  ///< as NVML numbers the boards
  std::string uuid;
  std::string pci_address;  ///< "0000:18:00.0"
  int minor = -1;           ///< 7 of /dev/nvidia7
  bool mig_enabled = false;
  std::vector<mig_entry> instances;
  bool operator==(const gpu_entry&) const = default;
};

/// The boards that NVML shows and how they are split. Loads NVML: the one that the linker finds,
/// and where that is none or does not start, the one at `library` (not empty: its path). The first
/// call of a process decides. Blocks as long as the driver takes: seconds where nobody keeps the
/// GPUs awake. Throws `error`: driver_unavailable, driver_error; the latter not for boards that do
/// not answer when there is `left_out`, which gets a line for each.
[[nodiscard]] std::vector<gpu_entry> ask_nvml(const std::string& library,
                                              std::vector<std::string>* left_out = nullptr);

/// Those that `ids` name: "0" a board with all its instances, "0:1" an instance, or the UUID of
/// either. Everything when there are no ids. Throws `error` (device_not_found), listing what there
/// is.
[[nodiscard]] std::vector<gpu_entry> select_devices(const std::vector<gpu_entry>& all,
                                                    const std::vector<std::string>& ids);

}  // namespace gpushm::discover
