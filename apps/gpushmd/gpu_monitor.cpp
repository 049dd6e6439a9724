// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushmd/gpu_monitor.hpp"

#include <utility>

#include "gpu/driver/nvml.hpp"

namespace gpushm::agent {

discover::generate_options driver_places(const settings& start) {
  discover::generate_options options;
  options.driver_root = start.driver_root;
  options.dev_root = start.dev_root;
  options.proc_root = start.proc_root;
  return options;
}

std::string use_nvml_of_node(const settings& start) {
  std::string nvml = discover::find_nvml(driver_places(start));
  if (!nvml.empty()) {
    driver::nvml_library::set_alternative_path(nvml);
  }
  return nvml;
}

std::unique_ptr<gpushm::device_plugin::health_monitor> watch_for_losses(
    const settings& start, decltype(gpushm::device_plugin::health_monitor::listener::lost) lost) {
  if (!start.broker || start.plugin_watches_gpus() || start.gpus_released) {
    return nullptr;
  }
  static_cast<void>(use_nvml_of_node(start));
  gpushm::device_plugin::health_monitor::listener listener;
  listener.lost = std::move(lost);
  return std::make_unique<gpushm::device_plugin::health_monitor>(start.health, std::move(listener));
}

}  // namespace gpushm::agent
