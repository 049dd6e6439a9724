// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>

#include "base/unique_fd.hpp"

namespace gpushm::cli {

/// The root directory of a container, whose files somebody else has made. Hooks run with all rights
/// of the host: whatever links the image holds, no path leads out of it here.
///
/// Distinct objects: safe. Shared objects: const members safe.
class container_root {
 public:
  /// How paths are followed: by the kernel (openat2), or where that is too old part by part. The
  /// second is there for tests.
  enum class resolution { best, by_parts };

  /// Throws `error` when it cannot be opened.
  explicit container_root(const std::string& path, resolution how = resolution::best);

  /// open(2) of `path` as the container sees it, links followed inside. Empty with errno set where
  /// that fails.
  [[nodiscard]] base::unique_fd open(std::string_view path, int flags, mode_t mode = 0) const;
  /// The directory `path` with those above it, made with mode 0755 where they are not there. Throws
  /// `error`.
  [[nodiscard]] base::unique_fd make_directory(std::string_view path) const;
  /// At most `limit_bytes` of a regular file; nothing when it cannot be read.
  [[nodiscard]] std::optional<std::string> read(std::string_view path,
                                                std::size_t limit_bytes = 65'536) const;
  /// Puts a file with mode 0644 in the place of whatever is called so. Throws `error`.
  void write(std::string_view directory, const std::string& name, std::string_view text) const;

  /// Whether its file system takes no changes from anybody.
  [[nodiscard]] bool read_only() const noexcept;

  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  [[nodiscard]] base::unique_fd open_by_parts(std::string_view path, int flags, mode_t mode) const;

  std::string path_;
  base::unique_fd root_;
  resolution how_;
};

/// A name that nobody else takes, for a file that is then renamed.
[[nodiscard]] std::string temporary_name(std::string_view name);

}  // namespace gpushm::cli
