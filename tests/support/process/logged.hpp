// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "gpushm/client.hpp"

namespace gpushm_testing {

/// Collects the lines logged during its lifetime. At most one may exist.
/// Thread-safety: shared objects: safe.
class logged {
 public:
  logged() {
    gpushm::set_log_sink([this](gpushm::log_level /*level*/, std::string_view text) {
      const std::lock_guard lock(mutex_);
      lines_.emplace_back(text);
    });
  }
  logged(const logged&) = delete;
  logged& operator=(const logged&) = delete;
  ~logged() { gpushm::set_log_sink(nullptr); }

  /// The lines that contain `part`.
  [[nodiscard]] std::vector<std::string> with(const std::string& part) const {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> result;
    for (const std::string& line : lines_) {
      if (line.find(part) != std::string::npos) {
        result.push_back(line);
      }
    }
    return result;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

}  // namespace gpushm_testing
