// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "apps/gpushm/inspect/matrix/published.hpp"
#include "apps/gpushm/inspect/matrix/result.hpp"

namespace gpushm::cli::matrix {

/// A published row and the corresponding row of this run.
struct compared_row {
  const row_result* measured = nullptr;
  const cell* raw = nullptr;  ///< null if the raw column was not requested
  std::string published;      ///< "success" or the published error text
  std::string here;  ///< the result of the raw column, in the same form; empty if it did not run
  [[nodiscard]] bool differs() const { return !here.empty() && here != published; }
};

/// Pairs the rows of a published table with those of `matrix`, in the order of the table. Omits
/// rows that `matrix` does not have.
[[nodiscard]] std::vector<compared_row> compare(const published_table& table,
                                                const matrix_result& matrix);

/// "8 of 8 rows ran, all as published." and a line for each row that differs, with the reason.
[[nodiscard]] std::vector<std::string> verdict_of(const std::vector<compared_row>& rows);

}  // namespace gpushm::cli::matrix
