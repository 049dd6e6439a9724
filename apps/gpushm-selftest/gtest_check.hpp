// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "apps/gpushm-selftest/check.hpp"

namespace gpushm::selftest {

/// Runs a GoogleTest program and reads its results. `before`: a wrapper program and its arguments,
/// put before the command line. Skipped if all of its tests were skipped.
[[nodiscard]] outcome run_gtest(const std::vector<std::string>& before,
                                const std::string& program,
                                const std::vector<std::pair<std::string, std::string>>& environment,
                                std::chrono::milliseconds timeout);

/// Converts the GoogleTest report (--gtest_output=json) of a program that exited with status 0.
[[nodiscard]] outcome judge_gtest(json report, const std::string& output);

}  // namespace gpushm::selftest
