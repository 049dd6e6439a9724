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

/// Human-readable, at most 100 columns.
void print_report(const doctor_report& report);
/// One JSON document (docs/cli.md).
void print_report_json(const doctor_report& report);

}  // namespace gpushm::cli
