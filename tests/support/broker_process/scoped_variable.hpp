// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gpushm_tests {

/// Sets environment variables of this process, which started programs inherit, and restores them on
/// destruction. For tests in which no other thread reads them.
/// Thread-safety: distinct objects: unsafe.
class scoped_variables {
 public:
  explicit scoped_variables(const std::vector<std::pair<std::string, std::string>>& values) {
    for (const auto& [name, value] : values) {
      set(name, value);
    }
  }
  scoped_variables(const std::string& name, const std::string& value) { set(name, value); }
  scoped_variables(const scoped_variables&) = delete;
  scoped_variables& operator=(const scoped_variables&) = delete;
  ~scoped_variables() {
    for (const auto& [name, value] : before_) {
      if (value) {
        ::setenv(name.c_str(), value->c_str(), 1);
      } else {
        ::unsetenv(name.c_str());
      }
    }
  }

 private:
  void set(const std::string& name, const std::string& value) {
    const char* const before = std::getenv(name.c_str());
    before_.emplace_back(name,
                         before == nullptr ? std::nullopt : std::optional<std::string>(before));
    ::setenv(name.c_str(), value.c_str(), 1);
  }

  std::vector<std::pair<std::string, std::optional<std::string>>> before_;
};

}  // namespace gpushm_tests
