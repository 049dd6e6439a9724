// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <optional>
#include <string>
#include <thread>

#include "base/files/unique_fd.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm_testing {

/// The reason why this machine has no such files, for GTEST_SKIP; nullopt if it has.
[[nodiscard]] std::optional<std::string> why_no_stuck_file();

/// A file of a FUSE server that does not answer when a process closes it: every close, in any
/// process, blocks, and SIGKILL does not end it, until this object is destroyed. Needs root.
/// Thread-safety: distinct objects: safe; shared objects: const members safe.
class stuck_file {
 public:
  /// Throws `harness_error`.
  stuck_file();
  stuck_file(const stuck_file&) = delete;
  stuck_file& operator=(const stuck_file&) = delete;
  ~stuck_file();

  /// Open; closing it in this process blocks, too.
  [[nodiscard]] int get() const noexcept { return file_.get(); }
  /// Whether a process is closing it.
  [[nodiscard]] bool is_being_closed() const noexcept { return is_being_closed_; }

 private:
  void serve();

  temp_dir directory_;
  gpushm::base::unique_fd device_;
  std::atomic<bool> is_being_closed_ = false;
  std::jthread server_;
  gpushm::base::unique_fd file_;
};

}  // namespace gpushm_testing
