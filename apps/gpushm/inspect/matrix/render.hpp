// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "apps/gpushm/inspect/matrix/result.hpp"

namespace gpushm::cli::matrix {

/// For terminals: at most 100 columns. All functions of this file are pure.
[[nodiscard]] std::string text_of(const matrix_result& matrix);

/// A page for the documentation.
[[nodiscard]] std::string markdown_of(const matrix_result& matrix);

/// Keys:
///   gpus, driver, runtime, kernel, date, remark, backends, stopped (null: everything was run)
///   summary   {ran, as_predicted, not_run, not_applicable, seconds}
///   rows      [{number, hostIPC, hostPID, shareProcessNamespace, privileged, gpus, pids, seconds,
///             cells}], cells {BACKEND: {result, side, failure, text, why, open_seconds,
///             exporter_pid, importer_pid, as_predicted, predicted: {result, failure,
///             driver_failure, why, remedy}}}; members that do not apply to a cell are null
///   published [{id, title, gpus, rows: [{row, published, here, differs}]}], `here` is the result
///             of the cell "raw-legacy" as the published text; null if it did not run
[[nodiscard]] nlohmann::ordered_json json_of(const matrix_result& matrix);

/// One line for each cell that did not end as predicted.
[[nodiscard]] std::vector<std::string> disagreements(const matrix_result& matrix);

/// "154 cells ran, 154 as predicted, 6 not run, 160 not applicable, 31.5 s".
[[nodiscard]] std::string summary_of(const matrix_result& matrix);

}  // namespace gpushm::cli::matrix
