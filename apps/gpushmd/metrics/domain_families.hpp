// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <prometheus/metric_family.h>

#include <vector>

#include "apps/gpushmd/metrics/agent_metrics.hpp"

namespace gpushm::metrics {

// Convert readings to metric families; without readings, return none. Pure functions.
[[nodiscard]] std::vector<prometheus::MetricFamily> families_of(
    const std::vector<domains::reading>& readings);
[[nodiscard]] std::vector<prometheus::MetricFamily> families_of(
    const std::vector<resource_reading>& readings);
[[nodiscard]] std::vector<prometheus::MetricFamily> families_of(
    const std::vector<dra_reading>& readings);

}  // namespace gpushm::metrics
