// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "apps/gpushm/inspect/matrix/result.hpp"

namespace gpushm::cli::matrix {

/// For terminals: at most 100 columns. Pure, as all here.
[[nodiscard]] std::string text_of(const matrix_result& all);

/// A page for documentation.
[[nodiscard]] std::string markdown_of(const matrix_result& all);

/// Everything:
///   gpus, driver, runtime, kernel, date, remark, backends, stopped (null: nothing was left out)
///   summary   {ran, as_predicted, not_run, not_applicable, seconds}
///   rows      [{number, hostIPC, hostPID, shareProcessNamespace, privileged, gpus, pids, seconds,
///             cells}], cells {BACKEND: {result, side, failure, text, why, open_seconds,
///             exporter_pid, importer_pid, as_predicted, predicted: {result, failure,
///             driver_failure, why, remedy}}}; what does not apply to a cell is null
///   published [{id, title, gpus, rows: [{row, published, here, differs}]}], `here` is the cell
///             "raw-legacy" in the published words and null when that did not run
[[nodiscard]] nlohmann::ordered_json json_of(const matrix_result& all);

/// What came out against what gpushm said, a line each; empty when nothing did.
[[nodiscard]] std::vector<std::string> disagreements(const matrix_result& all);

/// "154 cells ran, 154 as predicted, 6 not run, 160 not applicable, 31.5 s".
[[nodiscard]] std::string summary_of(const matrix_result& all);

}  // namespace gpushm::cli::matrix
