// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace gpushm::selftest {

using json = nlohmann::ordered_json;

/// A check that could not be made is `skipped`, with the reason, and never `passed`.
enum class verdict { passed, failed, skipped };
[[nodiscard]] std::string_view to_string(verdict value) noexcept;

struct outcome {
  verdict result = verdict::failed;
  std::string detail;  ///< one line for people: counts, the reason of a skip, what failed
  json data;           ///< what the check itself reported; null when nothing
  std::string output;  ///< what a failed program printed
};

/// One line of the results. `run` has a deadline of its own and does not throw for what it checks.
struct check {
  std::string name;
  std::function<outcome()> run;
};

[[nodiscard]] inline outcome skipped(std::string reason) {
  return {verdict::skipped, std::move(reason), nullptr, {}};
}

}  // namespace gpushm::selftest
