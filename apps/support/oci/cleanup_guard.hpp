// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/files/unique_fd.hpp"

namespace gpushm::app::oci {

/// A temporary directory, and a process that removes it and a container in it as soon as this
/// process exits in any way or the object is destroyed. Move-only.
///
/// Thread-safety: distinct objects: safe; shared objects: const members safe.
class cleanup_guard {
 public:
  /// The directory's name begins with `prefix`; its mode is 0700. Throws `error`
  /// (permission_denied, system_error).
  explicit cleanup_guard(std::string_view prefix) : cleanup_guard(prefix, {}, {}) {}
  /// Before the directory, also removes the container `id` with `RUNTIME... --root DIRECTORY/state
  /// delete --force ID`, and after it the empty cgroups with that name.
  cleanup_guard(std::string_view prefix,
                const std::vector<std::string>& runtime,
                const std::string& id);
  cleanup_guard(cleanup_guard&& other) noexcept;
  cleanup_guard& operator=(cleanup_guard&&) = delete;
  cleanup_guard(const cleanup_guard&) = delete;
  cleanup_guard& operator=(const cleanup_guard&) = delete;
  ~cleanup_guard();

  [[nodiscard]] const std::string& directory() const noexcept { return directory_; }
  /// Starts the removal and blocks until it is complete, at most ten seconds. Further calls have no
  /// effect.
  void finish() noexcept;

 private:
  cleanup_guard(const std::vector<std::string>& runtime, const std::string& id);

  pid_t pid_ = -1;
  base::unique_fd input_;
  std::string directory_;
};

}  // namespace gpushm::app::oci
