// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string_view>

namespace gpushm::base {

/// Hears what a service was asked and how it went: for counters.
///
/// Shared objects: safe; called from any thread, and from several at once.
class operation_observer {
 public:
  operation_observer() = default;
  operation_observer(const operation_observer&) = delete;
  operation_observer& operator=(const operation_observer&) = delete;
  virtual ~operation_observer() = default;

  /// `service` is "device_plugin", "dra" or "kubernetes_api"; `operation` names the call
  /// ("Allocate"); `outcome` is "ok" or the name of an errc. All are one of few values.
  virtual void finished(std::string_view service,
                        std::string_view operation,
                        std::string_view outcome,
                        std::chrono::nanoseconds took) noexcept = 0;
};

}  // namespace gpushm::base
