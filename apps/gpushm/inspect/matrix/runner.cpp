// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/inspect/matrix/runner.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <optional>

#include "gpushm/error.hpp"

namespace gpushm::cli::matrix {

namespace {

using clock = std::chrono::steady_clock;

/// Longer than any working driver needs, so that a hang affects one row and not the table.
constexpr std::chrono::seconds max_cell_time{30};
constexpr std::chrono::seconds max_start_time{30};
/// A runtime uses a slightly varying number of PIDs in a new namespace before the program starts.
constexpr int max_attempts = 10;

}  // namespace

std::string why_not_run(const row& setting, inspect::way sharing_way, std::size_t gpus) {
  if (gpus == 0) {
    return sharing_way == inspect::way::host ? "" : "no GPU";
  }
  return gpus == 1 && setting.gpus == gpu_choice::one_each ? "needs two GPUs" : "";
}

void runner::run(matrix_result& matrix) const {
  const auto start = clock::now();
  for (const row& setting : all_rows()) {
    const auto begin = clock::now();
    row_result& result = matrix.rows.emplace_back();
    result.setting = setting;
    result.cells = run_row(setting, matrix.ways);
    result.time = clock::now() - begin;
  }
  matrix.stopped = why_stopped();
  matrix.time = clock::now() - start;
}

std::vector<cell> runner::run_row(const row& setting, const std::vector<inspect::way>& ways) const {
  if (const std::string never = why_not_applicable(setting); !never.empty()) {
    return unused_cells(ways, cell_state::not_applicable, never);
  }
  auto cells = unused_cells(ways, cell_state::not_run, {});
  for (cell& each : cells) {
    each.why = why_not_run(setting, each.how, environment_.gpus.size());
  }
  for (int attempt = 1; !run_cells(setting, cells) && attempt < max_attempts; ++attempt) {
    for (cell& each : cells) {
      if (each.wrong_pids) {
        each = unused_cells({each.how}, cell_state::not_run, {}).front();
      }
    }
  }
  for (cell& each : cells) {
    if (each.state == cell_state::not_run && each.why.empty()) {
      each.why = "the PIDs of the previous cell were wrong";
    }
  }
  return cells;
}

bool runner::run_cells(const row& setting, std::vector<cell>& cells) const {
  const auto to_run = [](const cell& each) {
    return each.state == cell_state::not_run && each.why.empty();
  };
  if (std::none_of(cells.begin(), cells.end(), to_run)) {
    return true;
  }
  std::string ended = why_stopped();
  std::optional<container_pair> containers;
  try {
    if (ended.empty()) {
      containers.emplace(
          setting, environment_, stop_.fd(), std::min(until_, clock::now() + max_start_time));
    }
  } catch (const std::exception& failure) {
    ended = failure.what();
  }
  for (cell& each : cells) {
    if (!to_run(each)) {
      continue;
    }
    if (ended.empty()) {
      try {
        each = run_cell(setting, each.how, *containers);
      } catch (const std::exception& failure) {
        // No further trials are possible with these containers.
        const std::string problem = containers->problem();
        ended = std::string(failure.what()) + (problem.empty() ? "" : ": " + problem);
      }
    }
    // An interrupted trial looks like a side that hangs or a runtime that failed.
    if (const std::string stopped = why_stopped(); !stopped.empty()) {
      ended = stopped;
      if (each.state != cell_state::works) {
        each = unused_cells({each.how}, cell_state::not_run, {}).front();
      }
    }
    if (each.wrong_pids) {
      return false;
    }
    if (to_run(each)) {
      each.why = ended;
    }
  }
  return true;
}

cell runner::run_cell(const row& setting,
                      inspect::way sharing_way,
                      container_pair& containers) const {
  const assignment chosen = assign(setting, environment_);
  trial_setup setup;
  setup.how = sharing_way;
  setup.socket = fmt::format("{}/socket", domain_inside);
  if (sharing_way != inspect::way::host) {
    setup.exporter_device = chosen.exporter_device;
    setup.importer_device = chosen.importer_device;
    if (environment_.measure) {
      setup.measure = true;
      setup.size_bytes = measured_bytes;
    }
  }
  const auto until = std::min(until_, clock::now() + max_cell_time);
  const auto outcome = run_trial(containers.exporter(), containers.importer(), setup, until);
  return judge(setting, sharing_way, containers.both(), outcome);
}

std::string runner::why_stopped() const {
  if (stop_.pending()) {
    return "interrupted by a signal";
  }
  return clock::now() >= until_ ? "the --timeout expired" : "";
}

}  // namespace gpushm::cli::matrix
