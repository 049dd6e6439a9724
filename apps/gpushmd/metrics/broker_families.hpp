// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/gpushmd/metrics/broker_reading.hpp"
#include "apps/gpushmd/metrics/family.hpp"

namespace gpushm::metrics {

/// The metrics of gpushm-brokerd and of its domains. Domains that are not open have only
/// `gpushm_domain_serving`: a counter that reads 0 for the time of one scrape counts twice for
/// Prometheus. Pure function.
[[nodiscard]] families families_of(const broker_reading& reading);

}  // namespace gpushm::metrics
