// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>

#include "base/files/unique_fd.hpp"

namespace gpushm::hook {

/// The root directory of a container. Treats the author of its image and every process with access
/// to its volumes as attackers: hooks run as the host's root. No path leads out of the root or into
/// another mount: volumes and procfs are not part of the image. The only exception is /dev, which
/// the engine mounts.
///
/// Thread-safety: distinct objects: safe; shared objects: const members safe.
class container_root {
 public:
  /// Throws `error` when it cannot be opened, or the kernel has no openat2 (Linux 5.6).
  explicit container_root(const std::string& path);

  /// open(2) of `path` in the container, following links inside. Empty on failure, with errno set:
  /// EXDEV if the path crosses a mount.
  [[nodiscard]] base::unique_fd open(std::string_view path, int flags) const;
  /// The same for a path that must not have links in it, but may cross mounts.
  [[nodiscard]] base::unique_fd open_without_links(std::string_view path, int flags) const;
  /// The directory `path`; creates it and its parents with mode 0755 if missing. Throws `error`.
  [[nodiscard]] base::unique_fd make_directory(std::string_view path) const;
  /// At most `limit_bytes` of a regular file; empty when it cannot be read.
  [[nodiscard]] std::optional<std::string> read(std::string_view path,
                                                std::size_t limit_bytes = 65'536) const;
  /// Writes a file with mode 0644, replacing any entry with that name. Throws `error`.
  void write(std::string_view directory, const std::string& name, std::string_view text) const;

  /// Whether its file system is read-only.
  [[nodiscard]] bool read_only() const noexcept;

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  /// Its descriptor (O_PATH).
  [[nodiscard]] int descriptor() const noexcept { return root_.get(); }

 private:
  std::string path_;
  base::unique_fd root_;
};

/// A random name for a file that is then renamed.
[[nodiscard]] std::string temporary_name(std::string_view name);

/// Reads `fd` up to end of file or `limit_bytes`; empty on failure.
[[nodiscard]] std::optional<std::string> read_open_file(int fd, std::size_t limit_bytes);
/// Writes all of `text` to `fd`. Throws `error` naming `operation` and `object`.
void write_all(int fd, std::string_view text, std::string_view operation, std::string_view object);

}  // namespace gpushm::hook
