// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "apps/gpushmd/metrics/agent_metrics.hpp"
#include "apps/gpushmd/metrics/family.hpp"

namespace gpushm::metrics {

// Convert readings to metric families; without readings, return none. Pure functions.
[[nodiscard]] families families_of(const std::vector<domains::reading>& readings);
[[nodiscard]] families families_of(const std::vector<resource_reading>& readings);
[[nodiscard]] families families_of(const std::vector<dra_reading>& readings);

}  // namespace gpushm::metrics
