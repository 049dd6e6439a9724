// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gpushm::inspect {

/// What stat(2) says of a path, symbolic links followed.
struct file_status {
  std::string type;        ///< "file", "directory", "character device", "socket", "other"
  std::uint32_t mode = 0;  ///< permission bits
  std::uint32_t uid = 0;
  std::uint32_t gid = 0;
  std::uint32_t major = 0;  ///< of a device
  std::uint32_t minor = 0;
  friend bool operator==(const file_status&, const file_status&) = default;
};

/// Everything that is looked at on a machine, and the only way to it: a recorded machine answers
/// the same questions. Paths are absolute, as the process sees them ("/proc/self/status"). Nothing
/// here changes anything, throws, or waits for anybody.
///
/// Distinct objects: safe. Shared objects: unsafe.
class system {
 public:
  system() = default;
  system(const system&) = delete;
  system& operator=(const system&) = delete;
  virtual ~system() = default;

  /// The first 64 KiB of a file; nothing when it cannot be read.
  [[nodiscard]] virtual std::optional<std::string> read(const std::string& path) = 0;
  /// Where a symbolic link points; nothing when it is none or cannot be read.
  [[nodiscard]] virtual std::optional<std::string> link(const std::string& path) = 0;
  /// Names in a directory, sorted, without "." and ".."; none when it cannot be read.
  [[nodiscard]] virtual std::vector<std::string> list(const std::string& path) = 0;
  /// Nothing when there is no such path.
  [[nodiscard]] virtual std::optional<file_status> status(const std::string& path) = 0;
  /// 0 when the path can be opened for reading and writing, else the errno. For device nodes: only
  /// this tells what a device cgroup allows.
  [[nodiscard]] virtual int open_error(const std::string& path) = 0;
  /// Size of the file system that holds `path`, bytes; 0 when not known.
  [[nodiscard]] virtual std::uint64_t file_system_bytes(const std::string& path) = 0;
  /// An environment variable; nothing when it is not set.
  [[nodiscard]] virtual std::optional<std::string> variable(const std::string& name) = 0;
};

}  // namespace gpushm::inspect
