// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "apps/gpushm/inspect/matrix/published.hpp"
#include "apps/gpushm/inspect/matrix/result.hpp"

namespace gpushm::cli::matrix {

/// A published row beside ours.
struct compared_row {
  const row_result* ours = nullptr;
  const cell* raw = nullptr;  ///< null if the raw column was not requested
  std::string published;      ///< "success" or the published words
  std::string here;           ///< the same of the raw column; empty when it did not run
  [[nodiscard]] bool differs() const { return !here.empty() && here != published; }
};

/// The rows of a published table beside ours, in its order; those that `all` has.
[[nodiscard]] std::vector<compared_row> compare(const published_table& table,
                                                const matrix_result& all);

/// "8 of 8 rows ran: all as published." and a line for each row that differs, with why.
[[nodiscard]] std::vector<std::string> verdict_of(const std::vector<compared_row>& rows);

}  // namespace gpushm::cli::matrix
