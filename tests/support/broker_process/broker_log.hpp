// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <iostream>
#include <mutex>
#include <string>

#include "gpushm/gpushm.hpp"

namespace gpushm_tests {

/// Records the log of a broker in this process and prints it if the test has failed: only the log
/// shows why a connection ended. At most one may exist; declare it before the broker. Thread-safe.
class broker_log {
 public:
  broker_log() {
    gpushm::set_log_sink([this](gpushm::log_level, std::string_view line) {
      const std::lock_guard lock(mutex_);
      text_.append("broker's log: ").append(line).append("\n");
    });
  }
  broker_log(const broker_log&) = delete;
  broker_log& operator=(const broker_log&) = delete;
  ~broker_log() {
    gpushm::set_log_sink(nullptr);
    if (::testing::Test::HasFailure()) {
      std::cerr << text() << std::flush;
    }
  }

  [[nodiscard]] std::string text() const {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  mutable std::mutex mutex_;
  std::string text_;
};

}  // namespace gpushm_tests
