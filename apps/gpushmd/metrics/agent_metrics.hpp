// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/gpushmd/metrics/broker_reading.hpp"
#include "base/report/operations.hpp"

namespace gpushm::metrics {

/// A resource of the device plugin.
struct resource_reading {
  std::string resource;
  std::uint64_t healthy = 0;
  std::uint64_t unhealthy = 0;
  bool registered = false;
};

/// The DRA driver.
struct dra_reading {
  std::uint64_t prepared_claims = 0;
  std::uint64_t published_devices = 0;
  bool registered = false;
  bool expected = false;           ///< cluster and kubelet have DRA as far as is known
  std::optional<bool> api_served;  ///< nullopt: not known yet
};

/// Sources of the readings, called at each exposition on its thread. An empty function: no readings
/// of that kind.
struct sources {
  std::function<broker_reading()> broker;
  std::function<std::vector<resource_reading>()> resources;
  std::function<std::vector<dra_reading>()> dra;  ///< none or one
};

/// All metrics of the agent. Names and labels: docs/monitoring.md. Thread-safety:
/// distinct objects: safe; shared objects: safe.
class agent_metrics final : public base::operation_observer {
 public:
  agent_metrics(std::string_view version, sources sources);
  agent_metrics(const agent_metrics&) = delete;
  agent_metrics& operator=(const agent_metrics&) = delete;
  ~agent_metrics() override;

  void finished(std::string_view service,
                std::string_view operation,
                std::string_view outcome,
                std::chrono::nanoseconds took) noexcept override;

  /// Prometheus text format, version 0.0.4.
  [[nodiscard]] std::string exposition() const;

 private:
  class impl;
  std::unique_ptr<impl> impl_;
};

}  // namespace gpushm::metrics
