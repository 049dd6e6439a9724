// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "apps/gpushmd/settings.hpp"
#include "containers/discover/gpus/generate.hpp"
#include "kubernetes/device_plugin/health/monitor.hpp"

namespace gpushm::agent {

/// Where this node's driver is.
[[nodiscard]] discover::generate_options driver_places(const settings& start);

/// Finds the NVML of this node's driver, and has this process load it if the linker finds none: the
/// agent's image need not include the driver. Returns its path; empty if there is none.
[[nodiscard]] std::string use_nvml_of_node(const settings& start);

/// Watches the GPUs for a broker, if no device plugin of this agent does. Returns null if there is
/// nothing to watch: no broker, or the GPUs are to be released. `lost` as in
/// `health_monitor::listener`.
[[nodiscard]] std::unique_ptr<gpushm::device_plugin::health_monitor> watch_for_losses(
    const settings& start, decltype(gpushm::device_plugin::health_monitor::listener::lost) lost);

}  // namespace gpushm::agent
