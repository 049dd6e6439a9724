// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tests/support/container/options.hpp"

namespace gpushm_testing {

/// The existing device nodes of the real GPUs with the given minor numbers, and of the control
/// nodes that every user of the driver needs.
[[nodiscard]] std::vector<std::string> nvidia_device_nodes(const std::vector<int>& minors);

/// Minors of the GPUs that have a node in /dev, ascending; empty without a GPU.
[[nodiscard]] std::vector<int> nvidia_minors();

/// The directory of the libcuda.so.1 that this process would load; nullopt when there is none.
/// Loads it.
[[nodiscard]] std::optional<std::string> libcuda_directory();

/// Gives a container the real GPUs with these minors: nodes, permission, the driver's libraries,
/// /sys. Throws `harness_error` when there is no libcuda.
void allow_real_gpus(container_options& options, const std::vector<int>& minors);

}  // namespace gpushm_testing
