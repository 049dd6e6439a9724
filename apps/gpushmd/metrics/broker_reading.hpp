// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "domains/protocol/reading.hpp"
#include "domains/protocol/statistics.hpp"

namespace gpushm::metrics {

/// gpushm-brokerd and its domains, as of one exposition.
struct broker_reading {
  /// It replied in time. Otherwise `domains` has only those that the agent has opened, not serving
  /// and without numbers.
  bool replied = false;
  std::optional<domains::broker_facts> facts;
  std::vector<domains::reading> domains;
  /// Statistics by domain, of the domains whose broker replied in time.
  std::map<std::string, domains::domain_statistics> statistics;
};

}  // namespace gpushm::metrics
