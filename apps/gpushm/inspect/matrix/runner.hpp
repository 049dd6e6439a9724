// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/gpushm/inspect/matrix/pair.hpp"
#include "apps/gpushm/inspect/matrix/result.hpp"
#include "apps/support/stop_signal.hpp"

namespace gpushm::cli::matrix {

/// Why the columns cannot be run with as many GPUs as there are: for one way in one row, empty when
/// it can. Pure.
[[nodiscard]] std::string why_not_run(const row& setting, inspect::way how, std::size_t gpus);

/// Runs all rows, one after the other, until `until` or a signal; what did not run says so. Never
/// throws for what happens in a row.
class runner {
 public:
  runner(const surroundings& around, const app::stop_signal& stop, base::deadline until)
      : around_(around), stop_(stop), until_(until) {}

  /// Fills `rows`, `stopped` and `time`; `all.ways` says which columns.
  void run(matrix_result& all) const;

 private:
  [[nodiscard]] std::vector<cell> run_row(const row& setting,
                                          const std::vector<inspect::way>& ways) const;
  /// Starts a pair of containers and runs the cells that have no reason against it. False when it
  /// stopped because the PIDs came out wrong, which another pair may mend.
  [[nodiscard]] bool run_cells(const row& setting, std::vector<cell>& cells) const;
  [[nodiscard]] cell run_cell(const row& setting,
                              inspect::way how,
                              container_pair& containers) const;
  [[nodiscard]] std::string why_stopped() const;

  const surroundings& around_;
  const app::stop_signal& stop_;
  base::deadline until_;
};

}  // namespace gpushm::cli::matrix
