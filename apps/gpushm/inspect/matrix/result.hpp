// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/gpushm/inspect/matrix/rows.hpp"
#include "apps/gpushm/inspect/trial/trial.hpp"
#include "inspect/doctor/predict.hpp"

namespace gpushm::cli::matrix {

enum class cell_state : std::uint8_t { works, fails, crashes, not_run, not_applicable };
/// "works", "fails", "crashes", "not run", "not applicable".
[[nodiscard]] std::string_view to_string(cell_state value) noexcept;

/// The result of one way of sharing in one setting.
struct cell {
  inspect::way how = inspect::way::host;
  cell_state state = cell_state::not_run;
  std::string side;     ///< the side that failed or crashed: "exporter" or "importer"
  std::string failure;  ///< "CUDA_ERROR_INVALID_CONTEXT (201)", or a gpushm code
  std::string text;     ///< the whole message
  /// For a cell that ran, the reason in the prediction; for any other cell, why it did not run.
  std::string why;
  /// gpushm's prediction; only for a cell that ran.
  std::optional<inspect::prediction> predicted;
  std::int32_t exporter_pid = 0;
  std::int32_t importer_pid = 0;
  std::chrono::nanoseconds open_time{0};
  std::optional<double> bytes_per_second;  ///< of copies out of the importer's mapping
  /// It ran, but does not count because the PIDs did not match the row.
  bool wrong_pids = false;

  [[nodiscard]] bool ran() const noexcept { return predicted.has_value(); }
  /// Whether a cell that ran ended as predicted.
  [[nodiscard]] bool as_predicted() const;
};

struct row_result {
  row setting;
  std::vector<cell> cells;  ///< in the order of `matrix_result::ways`
  std::chrono::nanoseconds time{0};
};

/// The results of a run, and the machine and GPUs on which it ran.
struct matrix_result {
  std::vector<std::string> gpus;  ///< "NVIDIA H200 (GPU-…, /dev/nvidia0)"
  std::string driver;             ///< version; empty: unknown
  std::string runtime;            ///< "runc version 1.1.5"
  std::string kernel;
  std::string date;    ///< "2026-01-31"
  std::string remark;  ///< additional information about the GPUs; usually empty
  std::vector<inspect::way> ways;
  std::uint64_t measured_bytes = 0;  ///< size of the memory whose copies were timed; 0: none were
  std::vector<row_result> rows;
  std::string stopped;  ///< why not everything was run; empty: everything was
  std::chrono::nanoseconds time{0};
};

struct totals {
  int ran = 0;
  int as_predicted = 0;
  int not_run = 0;
  int not_applicable = 0;
};
[[nodiscard]] totals count(const matrix_result& matrix);

/// The cells of a row in which nothing was run.
[[nodiscard]] std::vector<cell> unused_cells(const std::vector<inspect::way>& ways,
                                             cell_state state,
                                             const std::string& why);

/// The permissions of both sides in a row; their PIDs come from the outcome.
struct sides {
  inspect::party exporter;
  inspect::party importer;
  int gpu = -1;  ///< minor of the GPU whose memory is shared
};

/// Converts an outcome into a cell: compares it with the prediction for the actual PIDs, unless
/// they do not match the row.
[[nodiscard]] cell judge(const row& setting,
                         inspect::way sharing_way,
                         const sides& both,
                         const trial_outcome& outcome);

}  // namespace gpushm::cli::matrix
