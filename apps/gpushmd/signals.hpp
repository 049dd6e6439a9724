// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>

#include "base/unique_fd.hpp"

namespace gpushm::agent {

/// SIGINT, SIGTERM and SIGHUP, one after another. To be made before any thread is started: they
/// inherit that these signals are not theirs.
///
/// One object a process. Shared objects: unsafe.
class signals {
 public:
  enum class kind { stop, reload };

  /// Throws `error` (system_error, too_many_descriptors).
  signals();

  /// Blocks until there is one, at most `timeout`; also until `other` (-1: none) is readable.
  [[nodiscard]] std::optional<kind> next(std::chrono::milliseconds timeout, int other = -1);

 private:
  base::unique_fd signals_;
};

}  // namespace gpushm::agent
