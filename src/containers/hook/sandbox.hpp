// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/files/unique_fd.hpp"
#include "containers/hook/root.hpp"

namespace gpushm::hook {

/// Lets a program of the host read a container's root, which may be hostile in every respect:
/// links, files, and processes that change them concurrently. The program
/// - has the container's root as its root, in a mount namespace without anything else: mounts below
///   it are included, read-only, without devices, set-uid and execution; procfs and sysfs are not,
///   so that no /proc/1/root leads to the host;
/// - has no capability and cannot gain one, is alone in its PID namespace, has only the standard
///   descriptors, no environment, and limits on memory, descriptors and files;
/// - can write only in its current directory: a tmpfs that no path leads to.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe. Precondition: the process has one
/// thread.
class root_sandbox {
 public:
  /// Throws `error`: without CAP_SYS_ADMIN in its user namespace, or on Linux before 5.12.
  explicit root_sandbox(const container_root& root);

  /// Puts a file into the program's current directory. Throws `error`.
  void put(const std::string& name, std::string_view text) const;

  struct ending {
    bool ended = false;  ///< false: killed after `timeout`
    int status = 0;      ///< from waitpid(2)
    std::string output;  ///< the end of what it wrote to its standard output and error
  };
  /// Runs the executable file `program`, which must be static: no interpreter or loader can be
  /// executed in the sandbox. Blocks until it exits, for little more than `timeout`. Throws
  /// `error`.
  [[nodiscard]] ending run(int program,
                           std::vector<std::string> arguments,
                           std::chrono::milliseconds timeout) const;

  /// A regular file of at most `limit_bytes` that the program left in its current directory; empty
  /// if there is none.
  [[nodiscard]] std::optional<std::string> take(const std::string& name,
                                                std::size_t limit_bytes) const;

 private:
  std::string where_;        ///< the root's path
  base::unique_fd tree_;     ///< a copy of the root's mounts, read-only, not attached anywhere
  base::unique_fd scratch_;  ///< a tmpfs, not attached anywhere
};

/// The mount points of procfs and sysfs at or below the mount with the ID `top`, from the text of
/// /proc/self/mountinfo. Throws `error` for malformed text. Pure.
[[nodiscard]] std::vector<std::string> kernel_file_mounts(std::string_view mountinfo,
                                                          std::uint64_t top);

}  // namespace gpushm::hook
