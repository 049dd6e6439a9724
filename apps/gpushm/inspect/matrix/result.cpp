// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/inspect/matrix/result.hpp"

namespace gpushm::cli::matrix {

namespace {

cell_state state_of(trial_result result) {
  switch (result) {
    case trial_result::works:
      return cell_state::works;
    case trial_result::fails:
      return cell_state::fails;
    case trial_result::crashes:
      return cell_state::crashes;
    case trial_result::not_run:
      break;
  }
  return cell_state::not_run;
}

cell_state state_of(const inspect::prediction& predicted) {
  return predicted.works     ? cell_state::works
         : predicted.crashes ? cell_state::crashes
                             : cell_state::fails;
}

/// Why the PIDs do not match the row; empty if they do.
std::string wrong_pids(const row& setting, const trial_outcome& outcome) {
  const bool equal = outcome.exporter_pid == outcome.importer_pid;
  if (equal == (setting.pids == pid_values::equal)) {
    return {};
  }
  return "PIDs were " + std::string(equal ? "equal" : "different") + " (exporter " +
         std::to_string(outcome.exporter_pid) + ", importer " +
         std::to_string(outcome.importer_pid) + ")";
}

}  // namespace

std::string_view to_string(cell_state value) noexcept {
  switch (value) {
    case cell_state::works:
      return "works";
    case cell_state::fails:
      return "fails";
    case cell_state::crashes:
      return "crashes";
    case cell_state::not_run:
      return "not run";
    case cell_state::not_applicable:
      return "not applicable";
  }
  return "unknown";
}

bool cell::as_predicted() const {
  return predicted && state == state_of(*predicted) &&
         (state == cell_state::works || failure == predicted->failure);
}

totals count(const matrix_result& matrix) {
  totals sum;
  for (const row_result& row : matrix.rows) {
    for (const cell& each : row.cells) {
      sum.ran += each.ran() ? 1 : 0;
      sum.as_predicted += each.as_predicted() ? 1 : 0;
      sum.not_run += each.state == cell_state::not_run ? 1 : 0;
      sum.not_applicable += each.state == cell_state::not_applicable ? 1 : 0;
    }
  }
  return sum;
}

std::vector<cell> unused_cells(const std::vector<inspect::way>& ways,
                               cell_state state,
                               const std::string& why) {
  std::vector<cell> cells;
  for (const inspect::way how : ways) {
    cell& unused = cells.emplace_back();
    unused.how = how;
    unused.state = state;
    unused.why = why;
  }
  return cells;
}

cell judge(const row& setting,
           inspect::way sharing_way,
           const sides& both,
           const trial_outcome& outcome) {
  cell result;
  result.how = sharing_way;
  result.side = outcome.side;
  result.failure = outcome.failure;
  result.text = outcome.text;
  result.exporter_pid = outcome.exporter_pid;
  result.importer_pid = outcome.importer_pid;
  result.open_time = outcome.open_time;
  result.bytes_per_second = outcome.bytes_per_second;
  result.state = state_of(outcome.result);
  if (result.state == cell_state::not_run) {
    result.why = outcome.failure;
    return result;
  }
  // A side that failed before reporting its PID did not use it.
  const bool known = outcome.exporter_pid > 0 && outcome.importer_pid > 0;
  const std::string wrong = known ? wrong_pids(setting, outcome) : "no PIDs were reported";
  if (!wrong.empty()) {
    result.state = cell_state::not_run;
    result.why = wrong;
    result.wrong_pids = true;
    return result;
  }
  inspect::party exporter = both.exporter;
  inspect::party importer = both.importer;
  exporter.pid = outcome.exporter_pid;
  importer.pid = outcome.importer_pid;
  result.predicted = inspect::predict(sharing_way, exporter, importer, both.gpu);
  result.why = result.predicted->why;
  return result;
}

}  // namespace gpushm::cli::matrix
