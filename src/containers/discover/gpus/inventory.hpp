// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gpushm::discover {

struct mig_entry {
  unsigned int index = 0;  ///< NVML's index of the instance on its GPU
  std::string uuid;
  unsigned int gpu_instance = 0;
  unsigned int compute_instance = 0;
  bool operator==(const mig_entry&) const = default;
};

struct gpu_entry {
  unsigned int index = 0;  ///< NVML's index of the GPU
  std::string uuid;
  std::string pci_address;  ///< "0000:18:00.0"
  int minor = -1;           ///< 7 for /dev/nvidia7
  bool mig_enabled = false;
  std::vector<mig_entry> instances;
  bool operator==(const gpu_entry&) const = default;
};

/// The GPUs that NVML reports, with their MIG instances. Loads the NVML that the linker finds; if
/// there is none or it does not start, the one at the path `library` (if not empty). The first call
/// of a process selects the library. Blocks as long as the driver takes: seconds without
/// persistence mode. Throws `error`: driver_unavailable, driver_error. With `left_out`, adds a line
/// for each GPU or MIG instance that does not answer instead of throwing: "GPU 1: CAUSE".
[[nodiscard]] std::vector<gpu_entry> query_nvml(const std::string& library,
                                                std::vector<std::string>* left_out = nullptr);

/// The devices with these `ids`: "0" is a GPU with all its instances, "0:1" an instance, or the
/// UUID of either. All devices without IDs. Throws `error` (device_not_found) with a list of the
/// available ones.
[[nodiscard]] std::vector<gpu_entry> select_devices(const std::vector<gpu_entry>& gpus,
                                                    const std::vector<std::string>& ids);

}  // namespace gpushm::discover
