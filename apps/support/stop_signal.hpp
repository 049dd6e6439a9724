// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace gpushm::app {

/// From its construction on, SIGINT, SIGTERM and SIGHUP no longer end the process but are noted
/// here. Before it, they end the process as usual, which is the right thing for a command that has
/// nothing to tidy up.
///
/// One object a process. Shared objects: safe.
class stop_signal {
 public:
  /// Throws `error` (system_error, too_many_descriptors).
  stop_signal();
  stop_signal(const stop_signal&) = delete;
  stop_signal& operator=(const stop_signal&) = delete;
  /// The handlers stay: the process is about to end, and must not die in its tidying up.
  ~stop_signal() = default;

  /// Blocks until a signal came, at most `timeout`. True when one came, now or before.
  [[nodiscard]] bool wait(std::chrono::milliseconds timeout) const;
  [[nodiscard]] bool pending() const { return wait(std::chrono::milliseconds(0)); }
  /// Readable from the first signal on: to be polled together with something else.
  [[nodiscard]] static int fd() noexcept;
};

}  // namespace gpushm::app
