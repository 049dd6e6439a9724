// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "apps/gpushm/json_output.hpp"

namespace gpushm::cli {

/// Prints each step of a demo immediately, and records it for --json.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class step_log {
 public:
  step_log(bool as_json, json& steps) : as_json_(as_json), steps_(steps) {}

  /// `duration_s`: of the step itself; negative: none.
  void step(const std::string& name, const std::string& text, double duration_s = -1);
  void print(const std::string& line) const;

 private:
  bool as_json_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  json& steps_;
};

/// Runs a demo, and prints its result: `document` with "result" and "error", or the error and PASS
/// or FAIL. Returns the exit status.
[[nodiscard]] int finish_demo(bool as_json, json& document, const std::function<void()>& run);

}  // namespace gpushm::cli
