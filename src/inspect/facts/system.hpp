// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gpushm::inspect {

/// The result of stat(2), which follows symbolic links.
struct file_status {
  std::string type;        ///< "file", "directory", "character device", "socket", "other"
  std::uint32_t mode = 0;  ///< permission bits
  std::uint32_t uid = 0;
  std::uint32_t gid = 0;
  std::uint32_t major = 0;  ///< of a device
  std::uint32_t minor = 0;
  friend bool operator==(const file_status&, const file_status&) = default;
};

/// A process that has device nodes of NVIDIA open.
struct node_holder {
  std::int32_t pid = 0;  ///< as this process sees it
  std::string name;
  std::vector<std::string> nodes;  ///< "/dev/nvidia0", sorted
  friend bool operator==(const node_holder&, const node_holder&) = default;
};

/// The only access to a machine's state; a recorded machine implements the same queries. Paths are
/// absolute, in this process's view ("/proc/self/status"). No function modifies the machine, throws
/// or blocks.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class system {
 public:
  system() = default;
  system(const system&) = delete;
  system& operator=(const system&) = delete;
  virtual ~system() = default;

  /// Returns the first 64 KiB of a file; nullopt if it cannot be read.
  [[nodiscard]] virtual std::optional<std::string> read(const std::string& path) = 0;
  /// Returns a symbolic link's target; nullopt if it is not a link or cannot be read.
  [[nodiscard]] virtual std::optional<std::string> link(const std::string& path) = 0;
  /// Returns the sorted names in a directory, without "." and ".."; empty if it cannot be read.
  [[nodiscard]] virtual std::vector<std::string> list(const std::string& path) = 0;
  /// Returns nullopt if the path does not exist.
  [[nodiscard]] virtual std::optional<file_status> status(const std::string& path) = 0;
  /// Returns 0 if the path can be opened for reading and writing, otherwise the errno. For device
  /// nodes this is the only way to detect what the device cgroup allows.
  [[nodiscard]] virtual int open_error(const std::string& path) = 0;
  /// Returns the size of the file system of `path` in bytes; 0 if unknown.
  [[nodiscard]] virtual std::uint64_t file_system_bytes(const std::string& path) = 0;
  /// Returns a file's SELinux context; nullopt if it has none or it cannot be read.
  [[nodiscard]] virtual std::optional<std::string> label(const std::string& path) = 0;
  /// Returns the other processes that have nodes of NVIDIA open, of those whose descriptors this
  /// process may list, by PID.
  [[nodiscard]] virtual std::vector<node_holder> holders() = 0;
  /// Returns an environment variable; nullopt if it is not set.
  [[nodiscard]] virtual std::optional<std::string> variable(const std::string& name) = 0;
};

}  // namespace gpushm::inspect
