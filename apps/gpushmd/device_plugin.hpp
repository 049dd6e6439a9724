// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "apps/gpushmd/inventory_child.hpp"
#include "apps/gpushmd/metrics/agent_metrics.hpp"
#include "apps/gpushmd/settings.hpp"
#include "base/operations.hpp"
#include "kubelet/plugin/health/monitor.hpp"
#include "kubelet/plugin/plan/plan.hpp"
#include "kubelet/server/manager.hpp"

namespace gpushm::agent {

/// The device plugin: takes an inventory, plans, writes the CDI documents, keeps the resources
/// registered, watches the boards. It plans on a thread of its own, again when boards or driver
/// change, and again after a pause when that failed; what was offered before stays meanwhile. A
/// driver that does not answer keeps neither the shares nor the end of this object waiting.
///
/// Distinct objects: safe, with directories of their own. Shared objects: safe.
class device_plugin {
 public:
  /// Plans with `start.offer` at once. The rest of `start` counts as long as the object lives.
  /// `observer` is not owned.
  device_plugin(const settings& start, base::operation_observer* observer);
  device_plugin(const device_plugin&) = delete;
  device_plugin& operator=(const device_plugin&) = delete;
  /// Blocks for seconds, whatever the driver does.
  ~device_plugin();

  /// Offers this from now on. Returns at once. Settings that no plan can be made of are logged, and
  /// those before stay.
  void offer(device_plugin_settings fresh);

  [[nodiscard]] std::vector<metrics::resource_reading> readings() const;
  /// Empty: everything is planned, the kubelet knows all resources, and the driver answers.
  [[nodiscard]] std::string not_ready() const;
  /// The kubelet knows all resources that are planned, and there are some.
  [[nodiscard]] bool registered() const;

 private:
  void run(const std::stop_token& stop);
  /// Waits for something to do; what to plan with, or nothing at the end.
  [[nodiscard]] std::optional<device_plugin_settings> next(const std::stop_token& stop);
  void apply(const device_plugin_settings& offered);
  void make_offer(const device_plugin_settings& offered,
                  const plugin::inventory& found,
                  bool without_gpus);
  [[nodiscard]] plugin::inventory take_inventory(const device_plugin_settings& offered);
  void plan_again();
  void look_at_driver();
  void board_changed(const std::string& uuid, const plugin::gpu_health& now);
  /// The caller has the mutex.
  void apply_health();
  [[nodiscard]] std::string not_registered() const;

  const settings start_;
  kubelet::manager manager_;
  std::unique_ptr<inventory_child> inventory_;  // null without GPUs
  mutable std::mutex mutex_;
  plugin::planned plan_;             // guarded by mutex_
  std::vector<std::string> boards_;  // guarded by mutex_: UUIDs of the plan
  bool driver_is_silent_ = false;    // guarded by mutex_
  std::string not_planned_ = "the device plugin has not planned yet";  // guarded by mutex_
  std::optional<device_plugin_settings> wanted_;  // guarded by mutex_: to be planned with
  bool again_ = true;                             // guarded by mutex_: to be planned once more
  std::condition_variable_any due_;
  std::unique_ptr<plugin::health_monitor> monitor_;  // ends before what its thread calls
  device_plugin_settings offered_;                   // of the planner's thread alone
  bool anything_offered_ = false;                    // of the planner's thread alone
  bool shares_offered_ = false;                      // of the planner's thread alone
  std::jthread planner_;
};

}  // namespace gpushm::agent
