// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushmd/device_plugin.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "apps/gpushmd/hook_file.hpp"
#include "base/log.hpp"
#include "discover/generate.hpp"
#include "driver/nvml.hpp"
#include "gpushm/error.hpp"
#include "kubelet/plugin/plan/inventory.hpp"

namespace gpushm::agent {

namespace {

/// Retry interval after a failed plan.
constexpr std::chrono::seconds retry_after{30};
/// NVML initializes every GPU that no process keeps initialized, which takes seconds per GPU.
constexpr std::chrono::seconds inventory_patience{120};
/// Shares are offered without the GPUs after this long.
constexpr std::chrono::seconds shares_wait{5};
/// GPUs are unhealthy when the driver has not answered for this long.
constexpr std::chrono::seconds driver_patience{60};
constexpr std::chrono::seconds look_at_driver_every{5};

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
    // A document that names a program that does not exist would stop every container from starting.
    base::log(log_level::warning,
              std::string(why.what()) + "; writing the CDI documents without hooks");
    made.disabled_hooks.insert("all");
  }
  return made;
}

plugin::plan_options plan_options_of(const settings& start, const device_plugin_settings& offered) {
  plugin::plan_options made;
  made.gpus = start.gpus;
  made.gpu_resource_name = offered.gpu_resource_name;
  made.per_gpu_resources = offered.per_gpu_resources;
  made.per_gpu_replicas = offered.per_gpu_replicas;
  made.share_replicas = start.broker ? offered.share_replicas : 0;
  made.domains = start.domains;
  made.domains_on_host = start.run_dir + "/d";
  made.policy = offered.replicas;
  made.places = places_of(start);
  return made;
}

std::string seconds_text(std::chrono::milliseconds time) {
  return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(time).count()) + " s";
}

}  // namespace

device_plugin::device_plugin(const settings& start, base::operation_observer* observer)
    : start_(start), manager_(manager_options_of(start, observer)), offered_(start.offer) {
  if (start_.gpus) {
    // For when the linker finds no NVML: the driver need not be in this container's image.
    const std::string nvml = discover::find_nvml(driver_places(start_));
    if (!nvml.empty()) {
      driver::nvml_library::set_alternative_path(nvml);
    }
    inventory_ = std::make_unique<inventory_child>(nvml);
    monitor_ = std::make_unique<plugin::health_monitor>(
        start_.health,
        plugin::health_monitor::listener{
            [this](const std::string& uuid, const plugin::gpu_health& now) {
              gpu_changed(uuid, now);
            },
            [this](const std::string& /*what*/) { plan_again(); }});
  }
  planner_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

device_plugin::~device_plugin() {
  planner_.request_stop();
  if (inventory_) {
    inventory_->cancel();
  }
  planner_.join();
  monitor_.reset();
  manager_.stop();
}

void device_plugin::offer(device_plugin_settings fresh) {
  const std::lock_guard lock(mutex_);
  wanted_ = std::move(fresh);
  due_.notify_all();
}

void device_plugin::plan_again() {
  const std::lock_guard lock(mutex_);
  again_ = true;
  due_.notify_all();
}

std::optional<device_plugin_settings> device_plugin::next(const std::stop_token& stop) {
  const auto retry_at = std::chrono::steady_clock::now() + retry_after;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      due_.wait_for(lock, stop, look_at_driver_every, [this] { return again_ || wanted_; });
      if (stop.stop_requested()) {
        return std::nullopt;
      }
      const bool retry = !not_planned_.empty() && std::chrono::steady_clock::now() >= retry_at;
      if (again_ || wanted_ || retry) {
        again_ = false;
        return std::exchange(wanted_, std::nullopt).value_or(offered_);
      }
    }
    look_at_driver();
  }
}

void device_plugin::run(const std::stop_token& stop) {
  while (const auto wanted = next(stop)) {
    std::string problem;
    try {
      apply(*wanted);
      if (anything_offered_ && *wanted != offered_) {
        base::log(log_level::info, "applied the device plugin's new settings");
      }
      offered_ = *wanted;
      anything_offered_ = true;
    } catch (const std::exception& why) {
      problem = why.what();
      if (stop.stop_requested()) {
        return;
      }
      base::log(log_level::error,
                *wanted == offered_ ? problem : problem + "; keeping the old settings");
    }
    const std::lock_guard lock(mutex_);
    not_planned_ = problem;
  }
}

plugin::inventory device_plugin::take_inventory(const device_plugin_settings& offered) {
  inventory_->start();
  if (auto found = inventory_->wait(base::deadline_in(shares_wait))) {
    return std::move(*found);
  }
  if (!anything_offered_ && !shares_offered_) {
    base::log(log_level::warning,
              "NVML has not answered for " + seconds_text(shares_wait) +
                  ": offering shares now, and GPUs when it answers");
    make_offer(offered, {}, true);
    shares_offered_ = true;
  }
  if (auto found = inventory_->wait(base::deadline_in(inventory_patience - shares_wait))) {
    return std::move(*found);
  }
  inventory_->stop();
  throw error(errc::timed_out,
              "take an inventory of the GPUs",
              {},
              "NVML did not answer within " + seconds_text(inventory_patience),
              "check that nvidia-smi answers, and check the kernel log for Xid lines");
}

void device_plugin::apply(const device_plugin_settings& offered) {
  make_offer(offered, start_.gpus ? take_inventory(offered) : plugin::inventory(), false);
}

void device_plugin::make_offer(const device_plugin_settings& offered,
                               const plugin::inventory& found,
                               bool without_gpus) {
  plugin::plan_options options = plan_options_of(start_, offered);
  options.gpus = options.gpus && !without_gpus;
  plugin::planned plan = plugin::make_plan(offered.plugin, options, found);
  // Running containers refer to the GPUs' document even while the driver does not answer.
  plugin::write_documents(
      plan, start_.cdi_dir, without_gpus ? plugin::others::stay : plugin::others::go);
  for (const std::string& note : plan.notes) {
    base::log(log_level::info, note);
  }
  for (const std::string& warning : plan.warnings) {
    base::log(log_level::warning, warning);
  }
  const std::lock_guard lock(mutex_);
  plan_ = std::move(plan);
  gpu_uuids_.clear();
  for (const plugin::gpu_info& each : found.gpus) {
    gpu_uuids_.push_back(each.entry.uuid);
  }
  apply_health();
  manager_.set_resources(plan_.resources);
}

void device_plugin::apply_health() {
  if (driver_is_silent_) {
    for (const std::string& uuid : gpu_uuids_) {
      plan_.set_health(uuid, false, "NVML does not answer");
    }
  } else if (monitor_ != nullptr) {
    // The monitor reports changes from here on to this plan.
    for (const auto& [uuid, state] : monitor_->gpus()) {
      plan_.set_health(uuid, state.healthy, state.reason);
    }
  }
}

void device_plugin::look_at_driver() {
  if (monitor_ == nullptr) {
    return;
  }
  const bool silent = monitor_->silent_for() > driver_patience;
  const std::lock_guard lock(mutex_);
  if (silent == driver_is_silent_) {
    return;
  }
  driver_is_silent_ = silent;
  base::log(silent ? log_level::error : log_level::info,
            silent ? "NVML has not answered for " + seconds_text(driver_patience) +
                         ": every GPU is unhealthy until it answers"
                   : std::string("NVML answers again"));
  if (!silent) {
    for (const std::string& uuid : gpu_uuids_) {
      plan_.set_health(uuid, true, {});
    }
  }
  apply_health();
}

void device_plugin::gpu_changed(const std::string& uuid, const plugin::gpu_health& now) {
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

std::string device_plugin::not_registered() const {
  const std::vector<kubelet::resource_status> all = manager_.status();
  for (const auto& planned : plan_.resources) {
    // The manager's thread may not have seen the new resources yet.
    const auto found = std::find_if(
        all.begin(), all.end(), [&](const auto& each) { return each.name == planned->name(); });
    if (found == all.end() || !found->registered) {
      std::string why = planned->name();
      why += " is not registered with the kubelet";
      if (found != all.end() && !found->last_error.empty()) {
        why += ": ";
        why += found->last_error;
      }
      return why;
    }
  }
  return {};
}

std::string device_plugin::not_ready() const {
  const std::lock_guard lock(mutex_);
  if (driver_is_silent_) {
    return "NVML does not answer";
  }
  return not_planned_.empty() ? not_registered() : not_planned_;
}

bool device_plugin::registered() const {
  const std::lock_guard lock(mutex_);
  return !plan_.resources.empty() && not_registered().empty();
}

}  // namespace gpushm::agent
