// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <string>
#include <string_view>

#include "gpushm/gpushm.hpp"

namespace gpushm_tests {

/// Writes the library's warnings to standard error as "log of PID: TEXT", for tests. Without locks,
/// because forked children log, too.
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
