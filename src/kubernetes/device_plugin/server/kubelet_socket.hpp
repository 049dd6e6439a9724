// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace gpushm::device_plugin {

/// Identity of the socket at a path, which distinguishes a recreated socket from its predecessor
/// even if it has the same inode.
struct socket_identity {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::int64_t created_seconds =
      0;  ///< modification time: a socket's contents change only on creation
  std::int64_t created_nanoseconds = 0;
  friend bool operator==(const socket_identity&, const socket_identity&) = default;
};

/// Returns nullopt if no socket exists at `path`. Never throws.
[[nodiscard]] std::optional<socket_identity> socket_at(const std::string& path) noexcept;

[[nodiscard]] bool is_directory(const std::string& path) noexcept;

}  // namespace gpushm::device_plugin
