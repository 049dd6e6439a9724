// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "base/directory_watch.hpp"

namespace gpushm::cli {

/// Tells when driver, nodes or MIG layout may have changed. Files of /proc send no events: those
/// are read again and again; directories on disk and in /dev do.
///
/// Distinct objects: safe. Shared objects: unsafe.
class driver_watch {
 public:
  /// `proc_root` is as /proc. Throws `error` (system_error, too_many_descriptors).
  explicit driver_watch(std::string proc_root);

  /// Watches these directories from now on, and no others; also those that are made later.
  void set_directories(const std::vector<std::string>& directories);
  /// Blocks until something may have changed, at most `timeout`, or until `stop_fd` is readable.
  /// True when something may have changed: an event of a file of the driver, or another text in
  /// /proc. A burst of events is awaited to its end, some seconds at most.
  [[nodiscard]] bool wait(std::chrono::milliseconds timeout, int stop_fd);

 private:
  [[nodiscard]] bool take_events();
  [[nodiscard]] std::string fingerprint() const;

  std::string proc_root_;
  std::string last_;
  base::directory_watch directories_;
};

}  // namespace gpushm::cli
