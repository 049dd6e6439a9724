// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gpushm::tensors {

/// What tells one content of a file from another without reading it. Programs can set mtime, but
/// not ctime: it shows writes that restore mtime.
struct file_stamp {
  /// 0 on overlay file systems: each container has a device number of its own, and the inodes are
  /// those of the layer.
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t size_bytes = 0;
  std::int64_t mtime_ns = 0;  ///< since 1970
  std::int64_t ctime_ns = 0;
  friend bool operator==(const file_stamp&, const file_stamp&) = default;
};

/// Returns the stamp of an open file. If it was changed within the file system's clock tick, waits
/// for the next one (some milliseconds): later changes have another time. `path` is for the error.
/// Throws `error`: invalid_file (not a regular file), system_error.
[[nodiscard]] file_stamp stamp_of(int file, const std::string& path);
/// The stamp of the file that has the path now; nullopt if there is none, or it is not a regular
/// one.
[[nodiscard]] std::optional<file_stamp> stamp_at(const std::string& path) noexcept;

/// Throws `error` (invalid_file, with what has changed) if the open file, or the file that has its
/// path now, differs from `before`. A path without a file is accepted: a removal changes the ctime.
void check_unchanged(int file, const std::string& path, const file_stamp& before);

/// "2026-11-28 22:39:14.123456789 UTC".
[[nodiscard]] std::string time_text(std::int64_t ns_since_1970);

/// Next step of errors.
inline constexpr std::string_view when_written =
    "load it again when no program writes it; write new files beside it, and rename them when they "
    "are complete";

}  // namespace gpushm::tensors
