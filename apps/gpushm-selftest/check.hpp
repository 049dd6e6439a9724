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
  std::string detail;  ///< one line: counts, or the reason for a skip or failure
  json data;           ///< the check's own report; null if none
  std::string output;  ///< the output of a failed program
};

/// One line of the results.
struct check {
  std::string name;
  /// Approximate duration on a machine with GPUs. A quick test runs a check only if it still fits.
  std::chrono::seconds expected{0};
  /// The sort key: `expected`, except for checks that run earlier so that every quick test includes
  /// them.
  std::chrono::seconds place{0};
  /// Can run several times concurrently (--repeat).
  bool repeatable = false;
  /// Fails if it takes longer than `limit`. Does not throw if the check fails. Thread-safe if
  /// `repeatable`.
  std::function<outcome(std::chrono::milliseconds limit)> run;
};

[[nodiscard]] inline outcome skipped(std::string reason) {
  return {verdict::skipped, std::move(reason), nullptr, {}};
}

}  // namespace gpushm::selftest
