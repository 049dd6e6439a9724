// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace gpushm::selftest {

using json = nlohmann::ordered_json;

/// A check that cannot run is `skipped`, with the reason, never `passed`.
enum class verdict { passed, failed, skipped };
[[nodiscard]] std::string_view to_string(verdict value) noexcept;

struct outcome {
  verdict result = verdict::failed;
  std::string detail;  ///< one line: counts, the reason of a skip or a failure
  json data;           ///< what the check itself reported; null when nothing
  std::string output;  ///< what a failed program printed
};

/// One line of the results.
struct check {
  std::string name;
  /// About how long it takes on a machine with GPUs; decides what a quick test has.
  std::chrono::seconds expected{0};
  /// The order: as `expected`, but for what comes earlier because every quick test should have it.
  std::chrono::seconds place{0};
  /// A test program that can run several times concurrently: --repeat.
  bool repeatable = false;
  /// Fails what takes longer than `limit`. Does not throw for what it checks. Safe to be called by
  /// several threads concurrently if `repeatable`.
  std::function<outcome(std::chrono::milliseconds limit)> run;
};

[[nodiscard]] inline outcome skipped(std::string reason) {
  return {verdict::skipped, std::move(reason), nullptr, {}};
}

}  // namespace gpushm::selftest
