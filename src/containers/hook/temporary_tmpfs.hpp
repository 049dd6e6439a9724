// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "base/files/unique_fd.hpp"
#include "containers/hook/root.hpp"

namespace gpushm::hook {

/// "/proc/self/fd/N".
[[nodiscard]] std::string descriptor_path(const base::unique_fd& fd);

/// A temporary tmpfs over a directory of the container: a bind mount needs a source in this mount
/// namespace, and no file may remain in the image. Its files exist as long as they are mounted.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class temporary_tmpfs {
 public:
  /// `directory` may be on any mount of the container, but its path must have no links. Throws
  /// `error` naming `operation`, which must outlive the object.
  temporary_tmpfs(const container_root& root,
                  const std::string& directory,
                  std::string_view operation);
  temporary_tmpfs(const temporary_tmpfs&) = delete;
  temporary_tmpfs& operator=(const temporary_tmpfs&) = delete;
  /// Uncovers the directory.
  ~temporary_tmpfs();

  /// A new file with mode 0444. Throws `error`.
  [[nodiscard]] base::unique_fd make_file(const std::string& name, std::string_view text) const;

 private:
  std::string_view operation_;
  base::unique_fd top_;
};

}  // namespace gpushm::hook
