// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/gpushm-selftest/check.hpp"

namespace gpushm::selftest {

/// How a program ended, and what it printed (standard output and error together).
struct program_result {
  std::optional<int>
      wait_status;  ///< nothing: it was killed at its deadline, or could not be started
  std::string output;
  std::string problem;  ///< why there is no status
  [[nodiscard]] bool success() const { return wait_status == 0; }
  /// "exit status 3", "killed by signal 9 (Killed)", "not finished after 60 s".
  [[nodiscard]] std::string text() const;
};

/// Runs a program to its end, and kills it with all that it started in its process group when it
/// takes longer. Does not throw for what the program does.
[[nodiscard]] program_result run_program(
    const std::vector<std::string>& argv,
    const std::vector<std::pair<std::string, std::string>>& environment,
    std::chrono::milliseconds timeout);

/// A program's absolute path, looked for in $PATH.
[[nodiscard]] std::optional<std::string> find_in_path(const std::string& name);

/// A failed outcome that tells of `result`.
[[nodiscard]] outcome failed(const program_result& result);

}  // namespace gpushm::selftest
