// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "apps/gpushm-selftest/check.hpp"

namespace gpushm::selftest {

/// Returns the last lines of `text`, at most `count`.
[[nodiscard]] std::string last_lines(const std::string& text, int count);

/// The results so far. The file is complete after each result, so a killed self-test loses none.
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class results {
 public:
  /// `file`: empty for no file. `names`: all checks to run.
  results(std::string file, json machine, std::vector<std::string> names);

  /// Adds a check's outcome and writes the file. Throws `error` (system_error if it cannot be
  /// written).
  void add(const std::string& name, const outcome& ended, std::chrono::nanoseconds took);
  /// Marks the results as complete: all checks ran or were omitted deliberately. Throws as `add`.
  void finish();

  [[nodiscard]] int count(verdict value) const;
  /// Names of the checks without a result, in order.
  [[nodiscard]] const std::vector<std::string>& not_run() const noexcept { return not_run_; }

 private:
  void write() const;

  std::string file_;
  json machine_;
  std::vector<std::string> not_run_;
  std::map<verdict, int> counts_;
  json checks_ = json::array();
  bool finished_ = false;
};

}  // namespace gpushm::selftest
