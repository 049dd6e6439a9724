// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "base/files/unique_fd.hpp"

namespace gpushm_testing {

/// A TCP connection over the loopback interface with unsent data and SO_LINGER: the last close(2)
/// of `trap` blocks for the linger time. Move-only.
struct lingering_socket {
  /// Throws `gpushm::error`.
  explicit lingering_socket(std::chrono::seconds linger);

  gpushm::base::unique_fd listener;
  gpushm::base::unique_fd peer;  ///< never reads
  gpushm::base::unique_fd trap;
};

/// A file on a FUSE file system of this process whose server has stopped replying: fstat(2) of it,
/// and every close(2), blocks until the server's process has exited. Moves the process into a
/// separate mount namespace; the server is a child and is left in its process group. The caller
/// must not close the descriptor. Returns nullopt, with the reason in `why_not`, if FUSE cannot be
/// mounted.
[[nodiscard]] std::optional<int> silent_fuse_file(const std::string& directory,
                                                  std::string& why_not);

}  // namespace gpushm_testing
