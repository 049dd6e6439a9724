// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace gpushm::kubelet {

/// Which socket a path leads to, so that one that was made anew is told from the one before, even
/// if it got the same inode.
struct socket_identity {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::int64_t made_seconds = 0;  ///< a socket's contents change only when it is made
  std::int64_t made_nanoseconds = 0;
  friend bool operator==(const socket_identity&, const socket_identity&) = default;
};

/// Nothing when there is no socket at `path`. Never throws.
[[nodiscard]] std::optional<socket_identity> socket_at(const std::string& path) noexcept;

[[nodiscard]] bool is_directory(const std::string& path) noexcept;

}  // namespace gpushm::kubelet
