// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string_view>

namespace gpushm::base {

/// Observes the calls of a service and their outcomes, for counters.
///
/// Thread-safety: shared objects: safe; called from any thread, and from several concurrently.
class operation_observer {
 public:
  operation_observer() = default;
  operation_observer(const operation_observer&) = delete;
  operation_observer& operator=(const operation_observer&) = delete;
  virtual ~operation_observer() = default;

  /// `service` is "device_plugin", "dra" or "kubernetes_api"; `operation` names the call
  /// ("Allocate"); `outcome` is "ok" or the name of an errc. Each has a small set of values.
  virtual void finished(std::string_view service,
                        std::string_view operation,
                        std::string_view outcome,
                        std::chrono::nanoseconds took) noexcept = 0;
};

}  // namespace gpushm::base
