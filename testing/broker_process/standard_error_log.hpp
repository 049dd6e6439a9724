// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <string>
#include <string_view>

#include "gpushm/gpushm.hpp"

namespace gpushm_tests {

/// Sends the library's warnings to standard error, "log of PID: TEXT" each, for a test to show.
/// Without locks: a forked child says something too.
inline void log_to_standard_error() {
  gpushm::set_log_sink([](gpushm::log_level level, std::string_view text) {
    if (level >= gpushm::log_level::warning) {
      const std::string line =
          "log of " + std::to_string(::getpid()) + ": " + std::string(text) + "\n";
      static_cast<void>(!::write(STDERR_FILENO, line.data(), line.size()));
    }
  });
}

}  // namespace gpushm_tests
