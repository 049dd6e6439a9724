// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>

#include "base/unique_fd.hpp"
#include "base/wakeup.hpp"

namespace gpushm::agent {

/// SIGINT, SIGTERM and SIGHUP, and wake-ups by other threads, one after another. To be made before
/// any thread is started: they inherit that these signals are not theirs.
///
/// One object a process. Shared objects: `wake` safe, `next` unsafe.
class signals {
 public:
  enum class kind { stop, reload, woken };

  /// Throws `error` (system_error, too_many_descriptors).
  signals();

  /// Blocks until there is one, at most `timeout`.
  [[nodiscard]] std::optional<kind> next(std::chrono::milliseconds timeout);
  /// `next` returns `woken`, now or when it is called; once for several wake-ups.
  void wake() noexcept { wake_ups_.signal(); }

 private:
  base::unique_fd signals_;
  base::wakeup wake_ups_;
};

}  // namespace gpushm::agent
