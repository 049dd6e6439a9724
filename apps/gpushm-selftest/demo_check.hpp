// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "apps/gpushm-selftest/check.hpp"

namespace gpushm::selftest {

/// Runs `gpushm demo --json` with `arguments` and `before` as for `run_gtest`. An isolated demo
/// that this machine does not permit is skipped.
[[nodiscard]] outcome run_demo(const std::vector<std::string>& before,
                               const std::string& program,
                               const std::vector<std::string>& arguments,
                               const std::vector<std::pair<std::string, std::string>>& environment,
                               std::chrono::milliseconds timeout);

/// Runs `gpushm_fence_proof`, and keeps its report.
[[nodiscard]] outcome run_proof(const std::vector<std::string>& before,
                                const std::string& program,
                                const std::vector<std::string>& arguments,
                                const std::vector<std::pair<std::string, std::string>>& environment,
                                std::chrono::milliseconds timeout);

/// Runs a benchmark program, and keeps its JSON report.
[[nodiscard]] outcome run_benchmark(
    const std::string& program,
    const std::vector<std::pair<std::string, std::string>>& environment,
    std::chrono::milliseconds timeout);

}  // namespace gpushm::selftest
