// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "base/files/unique_fd.hpp"

namespace gpushm_testing {

struct spawn_options {
  /// The program, absolute or found in `$PATH`, and its arguments.
  std::vector<std::string> argv;
  /// Added to this process's environment; an empty value removes the variable.
  std::vector<std::pair<std::string, std::string>> env = {};
  /// This process's if empty.
  std::string working_directory = {};
  /// Limit of open descriptors, soft and hard; 0: this process's.
  unsigned open_files = 0;
  /// Run under this uid and gid (as root only), without supplementary groups; -1: this process's.
  uid_t uid = static_cast<uid_t>(-1);
  gid_t gid = static_cast<gid_t>(-1);
  /// Not -1: the child reads one byte from this descriptor before it starts the program.
  int gate = -1;
  /// SIGKILL for the child when the thread that started it exits.
  bool dies_with_parent = true;
};

/// A started process: its pid and this side's ends of its pipes.
struct spawned {
  pid_t pid = -1;
  gpushm::base::unique_fd in;
  gpushm::base::unique_fd out;
  gpushm::base::unique_fd err;
};

/// Starts a program in a separate process group. If it cannot be executed, the child writes the
/// reason to its standard error and exits with 127. The caller reaps it. Throws `harness_error`
/// when no process can be created. Thread-safe.
[[nodiscard]] spawned spawn(const spawn_options& options);

}  // namespace gpushm_testing
