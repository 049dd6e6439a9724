// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "base/unique_fd.hpp"

namespace gpushm::transport {

/// A listening SOCK_SEQPACKET socket at a path, and the lock (PATH.lock) that keeps other brokers
/// off it. Move-only; the destructor removes socket and lock file, unless somebody replaced the
/// socket.
///
/// Distinct objects: safe. Shared objects: unsafe.
class listener {
 public:
  /// Binds next to `path` and renames over it, so that a reader sees the dead broker's socket or
  /// this one and never nothing. Throws `errc::address_in_use` when a live broker, or any other
  /// listener, has the path.
  listener(const std::string& path, mode_t mode, std::optional<gid_t> group);
  listener(listener&& other) noexcept;
  listener& operator=(listener&&) = delete;
  listener(const listener&) = delete;
  listener& operator=(const listener&) = delete;
  ~listener();

  /// Non-blocking, close-on-exec.
  [[nodiscard]] int descriptor() const noexcept { return socket_.get(); }

 private:
  std::string path_;
  ino_t inode_ = 0;
  base::unique_fd lock_;
  base::unique_fd socket_;
};

}  // namespace gpushm::transport
