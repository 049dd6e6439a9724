// SPDX-License-Identifier: Apache-2.0
#include "device_plugin.hpp"

#include <algorithm>
#include <utility>

#include "base/log.hpp"
#include "discover/generate.hpp"
#include "driver/nvml.hpp"
#include "hook_file.hpp"
#include "kubelet/plugin/inventory.hpp"

namespace gpushm::agent {

namespace {

kubelet::manager_options manager_options_of(const settings& chosen,
                                            base::operation_observer* observer) {
  kubelet::manager_options made;
  made.directory = chosen.device_plugin_dir;
  made.observer = observer;
  return made;
}

discover::generate_options driver_places(const settings& chosen) {
  discover::generate_options made;
  made.driver_root = chosen.driver_root;
  made.dev_root = chosen.dev_root;
  made.proc_root = chosen.proc_root;
  return made;
}

discover::generate_options places_of(const settings& chosen) {
  discover::generate_options made = driver_places(chosen);
  if (!chosen.gpus) {
    return made;
  }
  try {
    made.hook_path =
        install_hook(chosen.hook_source.empty() ? hook_beside_this_program() : chosen.hook_source,
                     chosen.state_directory());
  } catch (const error& why) {
    // A document that names a program which is not there would stop every container.
    base::log(log_level::warning, std::string(why.what()) + "; the CDI documents go without hooks");
    made.disabled_hooks.insert("all");
  }
  return made;
}

plugin::plan_options plan_options_of(const settings& chosen) {
  plugin::plan_options made;
  made.gpus = chosen.gpus;
  made.gpu_resource_name = chosen.gpu_resource_name;
  made.per_gpu_resources = chosen.per_gpu_resources;
  made.per_gpu_replicas = chosen.per_gpu_replicas;
  made.share_replicas = chosen.broker ? chosen.share_replicas : 0;
  made.domains = chosen.domains;
  made.domains_on_host = chosen.run_dir + "/d";
  made.policy = chosen.replicas;
  made.places = places_of(chosen);
  return made;
}

}  // namespace

device_plugin::device_plugin(const settings& chosen,
                             std::function<void()> plan_anew,
                             base::operation_observer* observer)
    : manager_(manager_options_of(chosen, observer)) {
  if (chosen.gpus) {
    // Where the linker finds none: the driver need not be of this container's image.
    if (const std::string nvml = discover::find_nvml(driver_places(chosen)); !nvml.empty()) {
      driver::nvml_library::look_also_at(nvml);
    }
    monitor_ = std::make_unique<plugin::health_monitor>(
        chosen.health,
        plugin::health_monitor::listener{
            [this](const std::string& uuid, const plugin::board_health& now) {
              board_changed(uuid, now);
            },
            [plan_anew = std::move(plan_anew)](const std::string& /*what*/) { plan_anew(); }});
  }
}

device_plugin::~device_plugin() {
  monitor_.reset();
  manager_.stop();
}

void device_plugin::apply(const settings& chosen) {
  plugin::inventory found;
  if (chosen.gpus) {
    found = plugin::take_inventory();
  }
  plugin::planned plan = plugin::make_plan(chosen.plugin, plan_options_of(chosen), found);
  plugin::write_documents(plan, chosen.cdi_dir);
  for (const std::string& note : plan.notes) {
    base::log(log_level::info, note);
  }
  for (const std::string& warning : plan.warnings) {
    base::log(log_level::warning, warning);
  }
  const std::lock_guard lock(mutex_);
  plan_ = std::move(plan);
  if (monitor_ != nullptr) {
    // What the monitor finds from here on is told to this plan.
    for (const auto& [uuid, state] : monitor_->boards()) {
      plan_.set_health(uuid, state.healthy, state.reason);
    }
  }
  manager_.set_resources(plan_.resources);
}

void device_plugin::board_changed(const std::string& uuid, const plugin::board_health& now) {
  const std::lock_guard lock(mutex_);
  plan_.set_health(uuid, now.healthy, now.reason);
}

std::vector<metrics::resource_reading> device_plugin::readings() const {
  std::vector<metrics::resource_reading> all;
  for (const kubelet::resource_status& each : manager_.status()) {
    all.push_back({each.name, each.healthy, each.devices - each.healthy, each.registered});
  }
  return all;
}

std::string device_plugin::not_ready() const {
  const std::vector<kubelet::resource_status> all = manager_.status();
  const std::lock_guard lock(mutex_);
  for (const auto& planned : plan_.resources) {
    // The manager's thread may not have seen yet what it is to offer.
    const auto found = std::find_if(
        all.begin(), all.end(), [&](const auto& each) { return each.name == planned->name(); });
    if (found == all.end() || !found->registered) {
      std::string why = "the kubelet does not know ";
      why += planned->name();
      if (found != all.end() && !found->last_error.empty()) {
        why += ": ";
        why += found->last_error;
      }
      return why;
    }
  }
  return {};
}

}  // namespace gpushm::agent
