// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <vector>

#include "apps/gpushm/inspect/peer.hpp"
#include "apps/gpushm/inspect/self_test.hpp"
#include "inspect/doctor/check.hpp"
#include "inspect/doctor/compare.hpp"
#include "inspect/facts/facts.hpp"

namespace gpushm::cli {

/// The results of doctor.
struct doctor_report {
  inspect::facts facts;
  nlohmann::json recording;
  std::vector<inspect::check> checks;
  std::vector<inspect::peer_prediction> predictions;
  peer_nodes peer_minors;
  std::vector<selftest_finding> selftest;
  bool live = true;        ///< this machine, not a recording
  bool tried = false;      ///< the self-test was run
  bool ipc = false;        ///< of `doctor --ipc`: without facts about the machine
  std::string conclusion;  ///< the last line of `doctor --ipc`
  std::chrono::nanoseconds check_time{0};
  std::chrono::nanoseconds whole{0};

  [[nodiscard]] std::size_t count(inspect::verdict value) const;
  /// The number of checks with verdict `problem` and of trials that did not end as predicted.
  [[nodiscard]] std::size_t problems() const;
};

/// Prints the report, human-readable in at most 100 columns, or as one JSON document (docs/cli.md),
/// with the time since `begin`. Returns the exit status.
[[nodiscard]] int finish_report(doctor_report& report,
                                std::chrono::steady_clock::time_point begin,
                                bool as_json);

}  // namespace gpushm::cli
