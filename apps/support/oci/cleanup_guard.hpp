// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/unique_fd.hpp"

namespace gpushm::app::oci {

/// A process that waits for the end of this one, however it ends, and then removes a container and
/// a directory. Move-only; the end of the object has it do so at once.
///
/// Distinct objects: safe. Shared objects: unsafe.
class cleanup_guard {
 public:
  /// `command` is executed and then `directory` removed with all it holds (empty: none), then the
  /// cgroups called `cgroup` (empty: none) that are left empty. Throws `error` (system_error).
  cleanup_guard(const std::vector<std::string>& command,
                const std::string& directory,
                const std::string& cgroup);
  cleanup_guard(cleanup_guard&& other) noexcept;
  cleanup_guard& operator=(cleanup_guard&&) = delete;
  cleanup_guard(const cleanup_guard&) = delete;
  cleanup_guard& operator=(const cleanup_guard&) = delete;
  ~cleanup_guard();

  /// Has it do its work and waits for that, at most ten seconds. No effect the second time.
  void finish() noexcept;

 private:
  pid_t pid_ = -1;
  base::unique_fd input_;
};

}  // namespace gpushm::app::oci
