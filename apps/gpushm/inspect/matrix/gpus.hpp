// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "inspect/facts/driver_view.hpp"

namespace gpushm::cli::matrix {

/// A GPU that can be given to a container.
struct gpu {
  std::string uuid;
  std::string name;
  std::string pci_address;
  int ordinal = -1;  ///< as CUDA numbers it
  int minor = -1;
  /// "NVIDIA H200 (GPU-…, /dev/nvidia0)".
  [[nodiscard]] std::string text() const;
};

/// The whole GPUs of a view, in CUDA's order, without those whose device node is not known.
[[nodiscard]] std::vector<gpu> gpus_of(const inspect::driver_view& view);

/// Those that `wanted` names, in that order, else the first two. Throws `error`: device_not_found,
/// invalid_argument for the same one twice.
[[nodiscard]] std::vector<gpu> choose_gpus(const std::vector<gpu>& all,
                                           const std::vector<std::string>& wanted);

}  // namespace gpushm::cli::matrix
