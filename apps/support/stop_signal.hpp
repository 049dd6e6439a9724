// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace gpushm::app {

/// From construction on, SIGINT, SIGTERM and SIGHUP are recorded here instead of ending the
/// process. Commands without cleanup do not need it. Thread-safety: one object per process; shared
/// objects: safe.
class stop_signal {
 public:
  /// Throws `error` (system_error, too_many_descriptors).
  stop_signal();
  stop_signal(const stop_signal&) = delete;
  stop_signal& operator=(const stop_signal&) = delete;
  /// Keeps the handlers: the process is about to exit, and a signal must not interrupt its cleanup.
  ~stop_signal() = default;

  /// Blocks until a signal arrives, at most `timeout`. Returns whether one has arrived so far.
  [[nodiscard]] bool wait(std::chrono::milliseconds timeout) const;
  [[nodiscard]] bool pending() const { return wait(std::chrono::milliseconds(0)); }
  /// Readable from the first signal on; for use with poll.
  [[nodiscard]] static int fd() noexcept;
};

}  // namespace gpushm::app
