// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.hpp"
#include "hook/root.hpp"

namespace gpushm::hook {

/// Lets a program of the host read a container's root, of which everything may be hostile: links,
/// files, and processes that change them meanwhile. The program
/// - has the container's root as its own, in a mount namespace that has nothing else: mounts below
///   it are there, read-only, without devices, set-uid and execution; no procfs or sysfs is, so
///   that no /proc/1/root leads to the host;
/// - has no capability and gets none, is alone in its PID namespace, has no descriptor but its
///   standard ones, no environment, and limits on memory, descriptors and files;
/// - can write in one place, its current directory: a tmpfs that no path leads to.
///
/// Distinct objects: safe. Shared objects: unsafe. The process must have one thread.
class root_sandbox {
 public:
  /// Throws `error`: without CAP_SYS_ADMIN in its user namespace, or on Linux before 5.12.
  explicit root_sandbox(const container_root& root);

  /// Puts a file into the program's current directory. Throws `error`.
  void put(const std::string& name, std::string_view text) const;

  struct ending {
    bool ended = false;  ///< not killed because its time was over
    int status = 0;      ///< as of waitpid(2)
    std::string said;    ///< the end of what it wrote to its standard output and error
  };
  /// Runs the executable file `program`: a static one, as neither interpreter nor loader can be
  /// executed in there. Blocks until its end, for little more than `patience`. Throws `error`.
  [[nodiscard]] ending run(int program,
                           std::vector<std::string> arguments,
                           std::chrono::milliseconds patience) const;

  /// A regular file that the program has left in its current directory, of at most `limit_bytes`;
  /// nothing when there is none such.
  [[nodiscard]] std::optional<std::string> take(const std::string& name,
                                                std::size_t limit_bytes) const;

 private:
  std::string where_;        ///< the root's path
  base::unique_fd tree_;     ///< a copy of the root's mounts, read-only, not attached anywhere
  base::unique_fd scratch_;  ///< a tmpfs, not attached anywhere
};

/// Where a procfs or sysfs is mounted, of what hangs on the mount with the ID `top`, itself
/// included, as /proc/self/mountinfo lists them. Throws `error` for what is not such a list. Pure.
[[nodiscard]] std::vector<std::string> kernel_file_mounts(std::string_view mountinfo,
                                                          std::uint64_t top);

}  // namespace gpushm::hook
