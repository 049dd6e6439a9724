// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "apps/gpushmd/metrics/family.hpp"
#include "domains/protocol/process_usage.hpp"

namespace gpushm::metrics {

/// The metrics of a process, with the names that Prometheus' libraries use after the prefix
/// "process_". `program` is for the descriptions. Pure function.
[[nodiscard]] families families_of(const domains::process_usage& usage,
                                   const std::string& prefix,
                                   const std::string& program);

}  // namespace gpushm::metrics
