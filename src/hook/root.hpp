// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>

#include "base/unique_fd.hpp"

namespace gpushm::hook {

/// The root directory of a container. The author of its image is an attacker, and so is every
/// process that has one of its volumes: hooks run with the rights of the host's root. No path leads
/// out of the root here, nor to another mount in it: volumes and procfs are not the image's.
/// The one exception is /dev, which the engine mounts.
///
/// Distinct objects: safe. Shared objects: const members safe.
class container_root {
 public:
  /// Throws `error` when it cannot be opened, or the kernel has no openat2 (Linux 5.6).
  explicit container_root(const std::string& path);

  /// open(2) of `path` as the container sees it, links followed inside. Empty with errno set where
  /// that fails: EXDEV where the path crosses a mount.
  [[nodiscard]] base::unique_fd open(std::string_view path, int flags) const;
  /// The same for a path that must not have links in it, but may cross mounts.
  [[nodiscard]] base::unique_fd open_without_links(std::string_view path, int flags) const;
  /// The directory `path` with those above it, made with mode 0755 where they are not there. Throws
  /// `error`.
  [[nodiscard]] base::unique_fd make_directory(std::string_view path) const;
  /// At most `limit_bytes` of a regular file; nothing when it cannot be read.
  [[nodiscard]] std::optional<std::string> read(std::string_view path,
                                                std::size_t limit_bytes = 65'536) const;
  /// Puts a file with mode 0644 in the place of whatever has that name. Throws `error`.
  void write(std::string_view directory, const std::string& name, std::string_view text) const;

  /// Whether its file system takes no changes from anybody.
  [[nodiscard]] bool read_only() const noexcept;

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  /// Its descriptor (O_PATH).
  [[nodiscard]] int descriptor() const noexcept { return root_.get(); }

 private:
  std::string path_;
  base::unique_fd root_;
};

/// A name that nobody else takes, for a file that is then renamed.
[[nodiscard]] std::string temporary_name(std::string_view name);

/// What comes of `fd`, up to its end or `limit_bytes`; nothing when that fails.
[[nodiscard]] std::optional<std::string> read_open_file(int fd, std::size_t limit_bytes);
/// Writes all of `text` to `fd`. Throws `error` naming `operation` and `object`.
void write_all(int fd, std::string_view text, std::string_view operation, std::string_view object);

}  // namespace gpushm::hook
