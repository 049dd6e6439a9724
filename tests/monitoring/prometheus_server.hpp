// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/process/child.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm_tests {

/// A Prometheus of the distribution with the rules of this repository, which scrapes an agent.
/// Thread-safety: unsafe.
class prometheus_server {
 public:
  /// Starts it on a free port. Blocks until it listens, at most a minute.
  prometheus_server(int port_of_agent, std::chrono::milliseconds scrape_interval);

  [[nodiscard]] std::string url() const;
  /// The field "data" of the answer; null if the request fails, for instance because the server is
  /// not ready.
  [[nodiscard]] nlohmann::json get(const std::string& path);
  /// The samples that an expression has now; null as above.
  [[nodiscard]] nlohmann::json samples_of(const std::string& expression);
  [[nodiscard]] bool has_samples(const std::string& expression);
  [[nodiscard]] const std::string& last_answer() const { return last_answer_; }

 private:
  [[nodiscard]] gpushm_testing::spawn_options options_for(
      int port_of_agent, std::chrono::milliseconds scrape_interval) const;

  gpushm_testing::temp_dir folder_;
  gpushm_testing::child server_;
  int port_ = 0;
  std::string last_answer_;
};

/// Options to run scripts/plot_dashboard.py on the last `time` of a Prometheus. `note` becomes part
/// of the picture.
[[nodiscard]] gpushm_testing::spawn_options plot_options(const prometheus_server& server,
                                                         std::chrono::seconds time,
                                                         const std::string& note,
                                                         const std::string& output);

}  // namespace gpushm_tests
