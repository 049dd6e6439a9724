// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/operations.hpp"
#include "kubelet/plugin/health_monitor.hpp"
#include "kubelet/plugin/plan.hpp"
#include "kubelet/server/manager.hpp"
#include "metrics/agent_metrics.hpp"
#include "settings.hpp"

namespace gpushm::agent {

/// The device plugin: takes an inventory, plans, writes the CDI documents, keeps the resources
/// registered, watches the boards.
///
/// Distinct objects: safe, with directories of their own. Shared objects: `apply` unsafe, the rest
/// safe.
class device_plugin {
 public:
  /// `plan_anew` is called on a thread of its own when boards or driver are not what they were:
  /// `apply` is due. `observer` is not owned. Nothing is offered yet.
  device_plugin(const settings& chosen,
                std::function<void()> plan_anew,
                base::operation_observer* observer);
  device_plugin(const device_plugin&) = delete;
  device_plugin& operator=(const device_plugin&) = delete;
  ~device_plugin();

  /// Plans and offers, blocking for as long as the driver takes. Throws `error` for settings that
  /// cannot be, and for documents that cannot be written; what was offered before then stays.
  void apply(const settings& chosen);

  [[nodiscard]] std::vector<metrics::resource_reading> readings() const;
  /// Empty: the kubelet knows all resources.
  [[nodiscard]] std::string not_ready() const;

 private:
  void board_changed(const std::string& uuid, const plugin::board_health& now);

  kubelet::manager manager_;
  mutable std::mutex mutex_;
  plugin::planned plan_;                             // guarded by mutex_
  std::unique_ptr<plugin::health_monitor> monitor_;  // ends before what its thread calls
};

}  // namespace gpushm::agent
