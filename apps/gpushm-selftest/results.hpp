// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "apps/gpushm-selftest/check.hpp"

namespace gpushm::selftest {

/// The end of `text`, at most `count` lines.
[[nodiscard]] std::string last_lines(const std::string& text, int count);

/// What has ended so far. The file is whole after each result: a test that is killed keeps what it
/// had. Distinct objects: safe. Shared objects: unsafe.
class results {
 public:
  /// `file` is empty for none. `names` are those of all checks that are to run.
  results(std::string file, json machine, std::vector<std::string> names);

  /// Takes a check's outcome and writes the file. Throws `error` (system_error: it cannot be
  /// written).
  void add(const std::string& name, const outcome& ended, std::chrono::nanoseconds took);
  /// All ran, or were left out on purpose. Throws as `add` does.
  void finish();

  [[nodiscard]] int count(verdict value) const;
  /// Names of the checks that have no result, in order.
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
