// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "tests/support/process/child.hpp"
#include "tests/support/process/spawn.hpp"

namespace gpushm_testing {

/// The uid of gpushm-brokerd, which refuses to run as root; if this process is not root, its own.
[[nodiscard]] uid_t brokerd_uid();

/// A run directory for gpushm-brokerd. Throws `harness_error`.
void make_run_directory(const std::string& path);

/// The command line of gpushm-keeper with gpushm-brokerd, under `brokerd_uid`. `run_dir` must
/// exist; `for_keeper` and `for_broker` are added to their arguments.
[[nodiscard]] spawn_options brokerd_command(const std::string& run_dir,
                                            const std::vector<std::string>& for_broker = {},
                                            const std::vector<std::string>& for_keeper = {});

/// gpushm-brokerd and its keeper, as one process group.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class brokerd {
 public:
  /// Creates the directory, and returns once the private socket is there. `open_files`: the limit
  /// of both programs, 0 for this process's limit. Throws `harness_error`.
  explicit brokerd(const std::string& run_dir,
                   const std::vector<std::string>& for_broker = {},
                   unsigned open_files = 0,
                   const std::vector<std::string>& for_keeper = {});

  [[nodiscard]] child& keeper() noexcept { return keeper_; }
  /// The broker; 0: none at the moment.
  [[nodiscard]] pid_t pid() const;
  /// Kills it. Returns whether it has a successor.
  [[nodiscard]] bool kill() const;

 private:
  child keeper_;
};

/// The program of a keeper, which is the process with this PID (the guard); 0: none at the moment.
[[nodiscard]] pid_t program_kept_by(pid_t keeper);
/// The second process of the keeper, which does its work; waits until there is one, and it is not
/// `before`. Throws `harness_error`.
[[nodiscard]] pid_t worker_of_keeper(pid_t keeper, pid_t before = 0);
/// Kills the program. Returns whether the keeper has started another one.
[[nodiscard]] bool kill_program_kept_by(pid_t keeper);

}  // namespace gpushm_testing
