// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushmd/device_plugin.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "apps/gpushmd/gpu_monitor.hpp"
#include "apps/gpushmd/hook_file.hpp"
#include "apps/gpushmd/node_changes.hpp"
#include "base/report/log.hpp"
#include "gpushm/error.hpp"
#include "kubernetes/device_plugin/plan/inventory.hpp"

namespace gpushm::agent {

namespace {

/// Retry interval after a failed plan.
constexpr std::chrono::seconds retry_interval{30};
/// NVML initializes every GPU that no process keeps initialized, which takes seconds per GPU.
constexpr std::chrono::seconds inventory_timeout{120};
/// Shares are offered without the GPUs after this long.
constexpr std::chrono::seconds shares_wait{5};
/// GPUs are unhealthy after the driver has not responded for this long.
constexpr std::chrono::seconds driver_timeout{60};
constexpr std::chrono::seconds driver_check_interval{5};

gpushm::device_plugin::manager_options manager_options_of(const settings& chosen,
                                                          base::operation_observer* observer) {
  gpushm::device_plugin::manager_options options;
  options.directory = chosen.device_plugin_dir;
  options.observer = observer;
  return options;
}

discover::generate_options generate_options_of(const settings& chosen) {
  discover::generate_options options = driver_places(chosen);
  if (!chosen.gpus) {
    return options;
  }
  try {
    options.hook_path =
        install_hook(chosen.hook_source.empty() ? hook_next_to_executable() : chosen.hook_source,
                     chosen.state_directory());
  } catch (const error& why) {
    // A document that names a program that does not exist would stop every container from starting.
    base::log(log_level::warning,
              std::string(why.what()) + "; writing the CDI documents without hooks");
    options.disabled_hooks.insert("all");
  }
  return options;
}

gpushm::device_plugin::plan_options plan_options_of(const settings& start,
                                                    const device_plugin_settings& offered) {
  gpushm::device_plugin::plan_options options;
  options.gpus = start.gpus;
  options.gpu_resource_name = offered.gpu_resource_name;
  options.per_gpu_resources = offered.per_gpu_resources;
  options.per_gpu_replicas = offered.per_gpu_replicas;
  options.share_replicas = start.broker ? offered.share_replicas : 0;
  options.domains = start.domains;
  options.domains_on_host = start.run_dir + "/d";
  if (start.ipc) {
    options.ipc = install_ipc(start);
  }
  options.policy = offered.replicas;
  options.places = generate_options_of(start);
  return options;
}

std::string seconds_text(std::chrono::milliseconds time) {
  return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(time).count()) + " s";
}

}  // namespace

device_plugin::device_plugin(const settings& start,
                             base::operation_observer* observer,
                             loss_listener lost)
    : start_(start), manager_(manager_options_of(start, observer)), offered_(start.offer) {
  if (start_.gpus && !start_.gpus_released) {
    const std::string nvml = use_nvml_of_node(start_);
    inventory_ = std::make_unique<inventory_child>(nvml);
    monitor_ = std::make_unique<gpushm::device_plugin::health_monitor>(
        start_.health,
        gpushm::device_plugin::health_monitor::listener{
            [this](const std::string& uuid, const gpushm::device_plugin::gpu_health& now) {
              gpu_changed(uuid, now);
            },
            [this](const std::string& /*change*/) { request_plan(); },
            std::move(lost)});
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
  requested_ = std::move(fresh);
  due_.notify_all();
}

void device_plugin::request_plan() {
  const std::lock_guard lock(mutex_);
  plan_due_ = true;
  due_.notify_all();
}

std::optional<device_plugin_settings> device_plugin::next(const std::stop_token& stop) {
  const auto retry_at = std::chrono::steady_clock::now() + retry_interval;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      due_.wait_for(lock, stop, driver_check_interval, [this] { return plan_due_ || requested_; });
      if (stop.stop_requested()) {
        return std::nullopt;
      }
      const bool retry = !plan_problem_.empty() && std::chrono::steady_clock::now() >= retry_at;
      if (plan_due_ || requested_ || retry) {
        plan_due_ = false;
        return std::exchange(requested_, std::nullopt).value_or(offered_);
      }
    }
    check_driver();
  }
}

void device_plugin::run(const std::stop_token& stop) {
  while (const auto requested = next(stop)) {
    std::string problem;
    try {
      apply(*requested);
      if (anything_offered_ && *requested != offered_) {
        base::log(log_level::info, "applied the device plugin's new settings");
      }
      offered_ = *requested;
      anything_offered_ = true;
    } catch (const std::exception& why) {
      problem = why.what();
      if (stop.stop_requested()) {
        return;
      }
      base::log(log_level::error,
                *requested == offered_ ? problem : problem + "; keeping the old settings");
    }
    const std::lock_guard lock(mutex_);
    plan_problem_ = problem;
  }
}

gpushm::device_plugin::inventory device_plugin::take_inventory(
    const device_plugin_settings& offered) {
  if (start_.gpus_released) {
    gpushm::device_plugin::inventory none;
    none.problem = fmt::format("they are released while {} exists", release_file(start_));
    return none;
  }
  inventory_->start();
  if (auto found = inventory_->wait(base::deadline_in(shares_wait))) {
    return std::move(*found);
  }
  if (!anything_offered_ && !shares_offered_) {
    base::log(
        log_level::warning,
        fmt::format("NVML has not responded for {}: offering shares now, and GPUs when it responds",
                    seconds_text(shares_wait)));
    apply_offer(offered, {}, true);
    shares_offered_ = true;
  }
  if (auto found = inventory_->wait(base::deadline_in(inventory_timeout - shares_wait))) {
    return std::move(*found);
  }
  inventory_->stop();
  throw error(errc::timed_out,
              "take an inventory of the GPUs",
              {},
              "NVML did not respond within " + seconds_text(inventory_timeout),
              "check that nvidia-smi responds, and check the kernel log for Xid lines");
}

void device_plugin::apply(const device_plugin_settings& offered) {
  apply_offer(
      offered, start_.gpus ? take_inventory(offered) : gpushm::device_plugin::inventory(), false);
}

void device_plugin::apply_offer(const device_plugin_settings& offered,
                                const gpushm::device_plugin::inventory& inventory,
                                bool without_gpus) {
  gpushm::device_plugin::plan_options options = plan_options_of(start_, offered);
  options.gpus = options.gpus && !without_gpus;
  gpushm::device_plugin::planned plan =
      gpushm::device_plugin::make_plan(offered.plugin, options, inventory);
  // Running containers refer to the GPUs' document even while the driver does not respond.
  gpushm::device_plugin::write_documents(plan,
                                         start_.cdi_dir,
                                         without_gpus
                                             ? gpushm::device_plugin::stale_documents::keep
                                             : gpushm::device_plugin::stale_documents::remove);
  for (const std::string& note : plan.notes) {
    base::log(log_level::info, note);
  }
  for (const std::string& warning : plan.warnings) {
    base::log(log_level::warning, warning);
  }
  const std::lock_guard lock(mutex_);
  plan_ = std::move(plan);
  gpu_uuids_.clear();
  for (const gpushm::device_plugin::gpu_info& each : inventory.gpus) {
    gpu_uuids_.push_back(each.entry.uuid);
  }
  apply_health();
  apply_share_health();
  manager_.set_resources(plan_.resources);
}

void device_plugin::apply_health() {
  if (driver_is_unresponsive_) {
    for (const std::string& uuid : gpu_uuids_) {
      plan_.set_health(uuid, false, "NVML does not respond");
    }
  } else if (monitor_ != nullptr) {
    // From here on, the monitor reports changes to this plan.
    for (const auto& [uuid, state] : monitor_->gpus()) {
      plan_.set_health(uuid, state.healthy, state.reason);
    }
  }
}

void device_plugin::apply_share_health() {
  for (const std::string& domain : start_.domains) {
    const auto unserved = unserved_.find(domain);
    const bool healthy = unserved == unserved_.end();
    plan_.set_share_health(domain, healthy, healthy ? std::string() : unserved->second);
  }
}

void device_plugin::set_unserved(std::map<std::string, std::string> reasons) {
  const std::lock_guard lock(mutex_);
  if (reasons != unserved_) {
    unserved_ = std::move(reasons);
    apply_share_health();
  }
}

void device_plugin::check_driver() {
  if (monitor_ == nullptr) {
    return;
  }
  const bool unresponsive = monitor_->unresponsive_for() > driver_timeout;
  const std::lock_guard lock(mutex_);
  if (unresponsive == driver_is_unresponsive_) {
    return;
  }
  driver_is_unresponsive_ = unresponsive;
  base::log(
      unresponsive ? log_level::error : log_level::info,
      unresponsive
          ? fmt::format("NVML has not responded for {}: every GPU is unhealthy until it responds",
                        seconds_text(driver_timeout))
          : std::string("NVML responds again"));
  if (!unresponsive) {
    for (const std::string& uuid : gpu_uuids_) {
      plan_.set_health(uuid, true, {});
    }
  }
  apply_health();
}

void device_plugin::gpu_changed(const std::string& uuid,
                                const gpushm::device_plugin::gpu_health& now) {
  const std::lock_guard lock(mutex_);
  plan_.set_health(uuid, now.healthy, now.reason);
}

std::vector<metrics::resource_reading> device_plugin::readings() const {
  std::vector<metrics::resource_reading> all;
  for (const gpushm::device_plugin::resource_status& each : manager_.status()) {
    all.push_back({each.name, each.healthy, each.devices - each.healthy, each.registered});
  }
  return all;
}

std::string device_plugin::not_registered() const {
  const std::vector<gpushm::device_plugin::resource_status> statuses = manager_.status();
  for (const auto& planned : plan_.resources) {
    // The manager's thread may not have seen the new resources yet.
    const auto match = std::find_if(statuses.begin(), statuses.end(), [&](const auto& each) {
      return each.name == planned->name();
    });
    if (match == statuses.end() || !match->registered) {
      std::string why = planned->name() + " is not registered with the kubelet";
      if (match != statuses.end() && !match->last_error.empty()) {
        why += ": " + match->last_error;
      }
      return why;
    }
  }
  return {};
}

std::string device_plugin::not_ready() const {
  const std::lock_guard lock(mutex_);
  if (driver_is_unresponsive_) {
    return "NVML does not respond";
  }
  return plan_problem_.empty() ? not_registered() : plan_problem_;
}

bool device_plugin::registered() const {
  const std::lock_guard lock(mutex_);
  return !plan_.resources.empty() && not_registered().empty();
}

}  // namespace gpushm::agent
