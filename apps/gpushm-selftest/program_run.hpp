// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/gpushm-selftest/check.hpp"

namespace gpushm::selftest {

/// A program's exit status and output (standard output and error combined).
struct program_result {
  std::optional<int> wait_status;  ///< nullopt: killed at its deadline, or not started
  std::string output;
  std::string problem;  ///< why `wait_status` is nullopt
  [[nodiscard]] bool success() const { return wait_status == 0; }
  /// "exit status 3", "killed by signal 9 (Killed)", "not finished after 60 s".
  [[nodiscard]] std::string text() const;
};

/// Runs a program until it exits. After `timeout`, kills its process group. Does not throw if the
/// program fails.
[[nodiscard]] program_result run_program(
    const std::vector<std::string>& argv,
    const std::vector<std::pair<std::string, std::string>>& environment,
    std::chrono::milliseconds timeout);

/// Returns the absolute path of a program in $PATH.
[[nodiscard]] std::optional<std::string> find_in_path(const std::string& name);

/// Returns a failed outcome that describes `result`.
[[nodiscard]] outcome failed(const program_result& result);

}  // namespace gpushm::selftest
