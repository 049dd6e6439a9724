// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "apps/gpushm-selftest/check.hpp"

namespace gpushm::selftest {

/// Runs `gpushm demo --json` with `arguments`; `before` as in `run_gtest`. Skipped if this machine
/// does not permit an isolated demo.
[[nodiscard]] outcome run_demo(const std::vector<std::string>& before,
                               const std::string& program,
                               const std::vector<std::string>& arguments,
                               const std::vector<std::pair<std::string, std::string>>& environment,
                               std::chrono::milliseconds timeout);

/// Runs `gpushm_fence_proof` and returns its report.
[[nodiscard]] outcome run_proof(const std::vector<std::string>& before,
                                const std::string& program,
                                const std::vector<std::string>& arguments,
                                const std::vector<std::pair<std::string, std::string>>& environment,
                                std::chrono::milliseconds timeout);

/// Runs a benchmark program and returns its JSON report.
[[nodiscard]] outcome run_benchmark(
    const std::string& program,
    const std::vector<std::pair<std::string, std::string>>& environment,
    std::chrono::milliseconds timeout);

}  // namespace gpushm::selftest
