// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "base/files/directory_watch.hpp"

namespace gpushm::cli {

/// Detects possible changes of the driver, device nodes or MIG layout. Polls /proc, whose files
/// send no events, and watches directories on disk and in /dev, and the directory of the document.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class driver_watch {
 public:
  /// `proc_root` replaces /proc; `documents` is a directory of CDI documents. Throws `error`
  /// (system_error, too_many_descriptors).
  driver_watch(std::string proc_root, std::string documents);

  /// Watches exactly these directories of the driver from now on, including ones created later, and
  /// `documents`.
  void set_directories(std::vector<std::string> directories);
  /// Blocks until something may have changed, at most `timeout`, or until `stop_fd` is readable.
  /// True if the driver may have changed: an event for a driver file, or different text in /proc.
  /// False for a change in `documents`, and after `timeout`. Waits for the end of a burst of
  /// events, some seconds at most.
  [[nodiscard]] bool wait(std::chrono::milliseconds timeout, int stop_fd);

 private:
  struct changes {
    bool driver = false;
    bool documents = false;
  };
  [[nodiscard]] changes take_events();
  [[nodiscard]] std::string fingerprint() const;

  std::string proc_root_;
  std::string documents_;
  std::string last_;
  base::directory_watch directories_;
};

}  // namespace gpushm::cli
