// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "apps/gpushm-selftest/check.hpp"

namespace gpushm::selftest {

/// Runs a GoogleTest program, with `before` (a program that runs it, and that one's arguments) in
/// front, and reads its results. Skipped when every one of its tests was.
[[nodiscard]] outcome run_gtest(const std::vector<std::string>& before,
                                const std::string& program,
                                const std::vector<std::pair<std::string, std::string>>& environment,
                                std::chrono::milliseconds timeout);

/// The outcome that a GoogleTest report (--gtest_output=json) of a program that ended with success
/// means.
[[nodiscard]] outcome judge_gtest(json report, const std::string& output);

}  // namespace gpushm::selftest
