// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>

#include "base/files/unique_fd.hpp"

namespace gpushm::agent {

/// Receives SIGINT, SIGTERM and SIGHUP. Create it before any thread is started, so that threads
/// inherit the mask that blocks these signals. Thread-safety: one object per process; shared
/// objects: unsafe.
class signals {
 public:
  enum class kind { stop, reload };

  /// Throws `error` (system_error, too_many_descriptors).
  signals();

  /// Blocks until a signal arrives, `other` (-1: none) is readable, or `timeout` has passed.
  [[nodiscard]] std::optional<kind> next(std::chrono::milliseconds timeout, int other = -1);

 private:
  base::unique_fd signals_;
};

}  // namespace gpushm::agent
