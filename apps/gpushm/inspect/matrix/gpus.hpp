// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "inspect/facts/driver_view.hpp"

namespace gpushm::cli::matrix {

/// A GPU that can be added to a container.
struct gpu {
  std::string uuid;
  std::string name;
  std::string pci_address;
  int ordinal = -1;  ///< CUDA's ordinal
  int minor = -1;
  /// "NVIDIA H200 (GPU-…, /dev/nvidia0)".
  [[nodiscard]] std::string text() const;
};

/// The whole GPUs of a view in CUDA's order; omits those with an unknown device node.
[[nodiscard]] std::vector<gpu> gpus_of(const inspect::driver_view& view);

/// Returns the GPUs that `selection` names, in that order; the first two if it is empty. Throws
/// `error`: device_not_found, invalid_argument (the same GPU twice).
[[nodiscard]] std::vector<gpu> choose_gpus(const std::vector<gpu>& gpus,
                                           const std::vector<std::string>& selection);

}  // namespace gpushm::cli::matrix
