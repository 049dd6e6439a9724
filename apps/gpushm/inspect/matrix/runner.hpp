// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/gpushm/inspect/matrix/pair.hpp"
#include "apps/gpushm/inspect/matrix/result.hpp"
#include "apps/support/stop_signal.hpp"

namespace gpushm::cli::matrix {

/// Larger than the L2 cache of any GPU, so that the bandwidth is that of memory or links.
inline constexpr std::uint64_t measured_bytes = 256UL << 20U;

/// Why one way in one row cannot be run with this number of GPUs; empty if it can. Pure.
[[nodiscard]] std::string why_not_run(const row& setting,
                                      inspect::way sharing_way,
                                      std::size_t gpus);

/// Runs all rows sequentially, until `until` or a signal; cells that did not run contain the
/// reason. Errors in a row do not throw.
class runner {
 public:
  runner(const run_environment& environment, const app::stop_signal& stop, base::deadline until)
      : environment_(environment), stop_(stop), until_(until) {}

  /// Fills `rows`, `stopped` and `time`. `matrix.ways`: the columns to run.
  void run(matrix_result& matrix) const;

 private:
  [[nodiscard]] std::vector<cell> run_row(const row& setting,
                                          const std::vector<inspect::way>& ways) const;
  /// Starts a pair of containers and runs the cells that have no reason not to run. Returns false
  /// if it stopped because of wrong PIDs; another pair may get the right ones.
  [[nodiscard]] bool run_cells(const row& setting, std::vector<cell>& cells) const;
  [[nodiscard]] cell run_cell(const row& setting,
                              inspect::way sharing_way,
                              container_pair& containers) const;
  [[nodiscard]] std::string why_stopped() const;

  const run_environment& environment_;
  const app::stop_signal& stop_;
  base::deadline until_;
};

}  // namespace gpushm::cli::matrix
