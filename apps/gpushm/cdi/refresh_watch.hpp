// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "base/directory_watch.hpp"

namespace gpushm::cli {

/// Detects possible changes of the driver, device nodes or MIG layout. Polls /proc, whose files
/// send no events, and watches directories on disk and in /dev.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class driver_watch {
 public:
  /// `proc_root` replaces /proc. Throws `error` (system_error, too_many_descriptors).
  explicit driver_watch(std::string proc_root);

  /// Watches exactly these directories from now on, including ones created later.
  void set_directories(const std::vector<std::string>& directories);
  /// Blocks until something may have changed, at most `timeout`, or until `stop_fd` is readable.
  /// True when something may have changed: an event for a driver file, or different text in /proc.
  /// Waits for the end of a burst of events, some seconds at most.
  [[nodiscard]] bool wait(std::chrono::milliseconds timeout, int stop_fd);

 private:
  [[nodiscard]] bool take_events();
  [[nodiscard]] std::string fingerprint() const;

  std::string proc_root_;
  std::string last_;
  base::directory_watch directories_;
};

}  // namespace gpushm::cli
