// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "apps/gpushm/inspect/matrix/pair.hpp"
#include "apps/gpushm/inspect/matrix/result.hpp"

namespace gpushm::cli::matrix {

/// A machine with up to three GPUs, of which the first two are used.
inline run_environment world(std::size_t gpus = 2) {
  const std::vector<gpu> selected{{"GPU-aaaaaaaa-0000", "GPU A", "0000:10:00.0", 0, 0},
                                  {"GPU-bbbbbbbb-0000", "GPU B", "0000:11:00.0", 1, 1}};
  run_environment environment;
  environment.gpus.assign(selected.begin(), selected.begin() + static_cast<std::ptrdiff_t>(gpus));
  environment.all_minors = gpus == 0 ? std::vector<int>{} : std::vector<int>{0, 1, 2};
  environment.domain_directory = "/host/domain";
  environment.shm_directory = "/host/shm";
  return environment;
}

inline row row_numbered(int number) {
  return all_rows().at(static_cast<std::size_t>(number) - 1);
}

/// The permissions of both sides of a row.
inline sides sides_of(const row& setting, const run_environment& environment) {
  const assignment chosen = assign(setting, environment);
  sides both;
  both.exporter.known_minors = true;
  both.exporter.minors = chosen.exporter_minors;
  both.importer.known_minors = true;
  both.importer.minors = chosen.importer_minors;
  both.gpu = chosen.gpu;
  return both;
}

/// An outcome with the PIDs of a row.
inline trial_outcome outcome_for(const row& setting) {
  trial_outcome outcome;
  outcome.exporter_pid = 7;
  outcome.importer_pid = setting.pids == pid_values::equal ? 7 : 8;
  return outcome;
}

/// The outcome as predicted.
inline trial_outcome predicted_outcome(const row& setting,
                                       inspect::way sharing_way,
                                       const run_environment& environment) {
  sides both = sides_of(setting, environment);
  trial_outcome outcome = outcome_for(setting);
  both.exporter.pid = outcome.exporter_pid;
  both.importer.pid = outcome.importer_pid;
  const auto predicted = inspect::predict(sharing_way, both.exporter, both.importer, both.gpu);
  outcome.result = predicted.works ? trial_result::works : trial_result::fails;
  outcome.side = predicted.works ? "" : "importer";
  outcome.failure = predicted.failure;
  outcome.text = predicted.works ? "" : "open: " + predicted.failure;
  outcome.open_time = std::chrono::microseconds(predicted.works ? 43 : 0);
  return outcome;
}

/// The whole table with all outcomes as predicted.
inline matrix_result predicted_matrix(const run_environment& environment, bool with_ipc = false) {
  matrix_result selected;
  selected.ways.assign(std::begin(inspect::all_ways), std::end(inspect::all_ways));
  if (with_ipc) {
    selected.ways.insert(
        selected.ways.end(), std::begin(inspect::ipc_ways), std::end(inspect::ipc_ways));
  }
  for (const gpu& each : environment.gpus) {
    selected.gpus.push_back(each.text());
  }
  selected.driver = "580.159.04";
  selected.runtime = "runc version 1.1.5";
  selected.kernel = "6.1.0";
  selected.date = "2026-01-31";
  selected.time = std::chrono::milliseconds(31'500);
  for (const row& setting : all_rows()) {
    row_result& made = selected.rows.emplace_back();
    made.setting = setting;
    if (const auto never = why_not_applicable(setting); !never.empty()) {
      made.cells = unused_cells(selected.ways, cell_state::not_applicable, never);
      continue;
    }
    for (const inspect::way how : selected.ways) {
      made.cells.push_back(judge(setting,
                                 how,
                                 sides_of(setting, environment),
                                 predicted_outcome(setting, how, environment)));
    }
  }
  return selected;
}

}  // namespace gpushm::cli::matrix
