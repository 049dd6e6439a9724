// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "apps/gpushmd/inventory_child.hpp"
#include "apps/gpushmd/metrics/agent_metrics.hpp"
#include "apps/gpushmd/settings.hpp"
#include "base/report/operations.hpp"
#include "kubernetes/device_plugin/health/monitor.hpp"
#include "kubernetes/device_plugin/plan/plan.hpp"
#include "kubernetes/device_plugin/server/manager.hpp"

namespace gpushm::agent {

/// The device plugin: takes an inventory, plans, writes the CDI documents, keeps the resources
/// registered and watches the GPUs. It plans on its own thread, replans when the GPUs or the driver
/// change, and retries a failed plan after a pause; the previous offer stays in effect meanwhile. A
/// driver that does not respond delays neither the shares nor the destructor. Thread-safety:
/// distinct objects: safe, with distinct directories; shared objects: safe.
class device_plugin {
 public:
  /// Immediately starts planning with `start.offer`. The rest of `start` applies for the lifetime
  /// of the object. `observer` is not owned. `lost` is called as that of
  /// `health_monitor::listener`.
  using loss_listener = std::function<void(const base::lost_device& device)>;
  device_plugin(const settings& start, base::operation_observer* observer, loss_listener lost = {});
  device_plugin(const device_plugin&) = delete;
  device_plugin& operator=(const device_plugin&) = delete;
  /// Blocks for at most seconds, even if the driver hangs.
  ~device_plugin();

  /// Replaces the offer. Does not block. Settings that cannot be planned are logged, and the
  /// previous ones stay in effect.
  void offer(device_plugin_settings fresh);

  /// Sets the domains whose shares are unhealthy, each with the reason; those of all others are
  /// healthy. Does not block.
  void set_unserved(std::map<std::string, std::string> reasons);

  [[nodiscard]] std::vector<metrics::resource_reading> readings() const;
  /// Empty if everything is planned, all resources are registered with the kubelet, and the driver
  /// responds.
  [[nodiscard]] std::string not_ready() const;
  /// Whether resources are planned and all of them are registered with the kubelet.
  [[nodiscard]] bool registered() const;

 private:
  void run(const std::stop_token& stop);
  /// Blocks until a plan is due and returns its settings; nullopt after a stop request.
  [[nodiscard]] std::optional<device_plugin_settings> next(const std::stop_token& stop);
  void apply(const device_plugin_settings& offered);
  void apply_offer(const device_plugin_settings& offered,
                   const gpushm::device_plugin::inventory& inventory,
                   bool without_gpus);
  [[nodiscard]] gpushm::device_plugin::inventory take_inventory(
      const device_plugin_settings& offered);
  void request_plan();
  void check_driver();
  void gpu_changed(const std::string& uuid, const gpushm::device_plugin::gpu_health& now);
  /// Precondition: the caller holds the mutex.
  void apply_health();
  /// Precondition: the caller holds the mutex.
  void apply_share_health();
  [[nodiscard]] std::string not_registered() const;

  const settings start_;
  gpushm::device_plugin::manager manager_;
  std::unique_ptr<inventory_child> inventory_;  // null without GPUs, or if they are released
  mutable std::mutex mutex_;
  gpushm::device_plugin::planned plan_;          // guarded by mutex_
  std::vector<std::string> gpu_uuids_;           // guarded by mutex_: of the plan
  std::map<std::string, std::string> unserved_;  // guarded by mutex_
  bool driver_is_unresponsive_ = false;          // guarded by mutex_
  std::string plan_problem_ = "the device plugin has not planned yet";  // guarded by mutex_
  std::optional<device_plugin_settings> requested_;  // guarded by mutex_: for the next plan
  bool plan_due_ = true;                             // guarded by mutex_: a plan is due
  std::condition_variable_any due_;
  std::unique_ptr<gpushm::device_plugin::health_monitor>
      monitor_;                     // destroyed before the members that its thread uses
  device_plugin_settings offered_;  // used only by the planner's thread
  bool anything_offered_ = false;   // used only by the planner's thread
  bool shares_offered_ = false;     // used only by the planner's thread
  std::jthread planner_;
};

}  // namespace gpushm::agent
