// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <vector>

namespace gpushm_tests {

/// Of docs/monitoring.md, and a panel of the dashboard.
struct titled_query {
  std::string title;
  std::string expression;
  friend bool operator==(const titled_query&, const titled_query&) = default;
};

struct alert_rule {
  std::string name;
  std::string expression;
  std::string severity;
  std::string summary;
  std::string runbook;
};

/// What rules_test.yaml expects of an alert: it fires, or does not.
struct alert_expectation {
  std::string name;
  bool fires = false;
};

// Read the files of the source tree. Throw `std::runtime_error` if one cannot be read or parsed.
[[nodiscard]] std::vector<titled_query> documented_queries();
[[nodiscard]] std::vector<alert_rule> alert_rules();
[[nodiscard]] std::vector<alert_expectation> alert_expectations();
[[nodiscard]] nlohmann::json dashboard();

/// Titles of the panels in a file of scripts/plot_dashboard.py, in their order. Pure function.
[[nodiscard]] std::vector<std::string> plotted_titles(const std::string& svg);

/// Names of the metrics in an expression of PromQL, histograms without their suffixes. `up`, which
/// Prometheus makes, is not among them. Pure function.
[[nodiscard]] std::set<std::string> metrics_in(const std::string& expression);

}  // namespace gpushm_tests
