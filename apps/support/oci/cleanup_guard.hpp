// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.hpp"

namespace gpushm::app::oci {

/// A temporary directory, and a process that waits for the end of this one, however it ends, and
/// then removes the directory and a container of it. Move-only; the end of the object has it do so
/// at once.
///
/// Distinct objects: safe. Shared objects: const members safe.
class cleanup_guard {
 public:
  /// The directory's name begins with `prefix`; its mode is 0700. Throws `error`
  /// (permission_denied, system_error).
  explicit cleanup_guard(std::string_view prefix) : cleanup_guard(prefix, {}, {}) {}
  /// Before the directory with all it holds, the container `id` is removed with
  /// `RUNTIME... --root DIRECTORY/state delete --force ID`, and after it the cgroups of that name
  /// that are left empty.
  cleanup_guard(std::string_view prefix,
                const std::vector<std::string>& runtime,
                const std::string& id);
  cleanup_guard(cleanup_guard&& other) noexcept;
  cleanup_guard& operator=(cleanup_guard&&) = delete;
  cleanup_guard(const cleanup_guard&) = delete;
  cleanup_guard& operator=(const cleanup_guard&) = delete;
  ~cleanup_guard();

  [[nodiscard]] const std::string& directory() const noexcept { return directory_; }
  /// Has it do its work and waits for that, at most ten seconds. No effect the second time.
  void finish() noexcept;

 private:
  cleanup_guard(const std::vector<std::string>& runtime, const std::string& id);

  pid_t pid_ = -1;
  base::unique_fd input_;
  std::string directory_;
};

}  // namespace gpushm::app::oci
