// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "base/guarded_fd.hpp"

namespace gpushm::transport {

/// A listening SOCK_SEQPACKET socket at a path, and the lock that keeps other brokers off the path.
/// Move-only; the destructor removes socket and lock file, unless another file has replaced them.
/// In a forked child both descriptors are closed and the destructor removes nothing: the files are
/// the parent's.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class listener {
 public:
  /// Binds next to `path` and renames over it, so that a client finds either the dead broker's
  /// socket or this one, and never none. Throws `errc::address_in_use` if a live broker, or any
  /// other listener, has the path. `lock_path`: the path of the lock; empty: PATH.lock.
  listener(const std::string& path,
           mode_t mode,
           std::optional<gid_t> group,
           const std::string& lock_path = {});
  /// Continues with the descriptors of another process's listener. The destructor removes no files.
  /// `path` is for messages. Throws `errc::invalid_argument` if they are not a locked file and a
  /// listening socket.
  listener(const std::string& path, base::guarded_fd lock, base::guarded_fd socket);
  listener(listener&& other) noexcept;
  listener& operator=(listener&&) = delete;
  listener(const listener&) = delete;
  listener& operator=(const listener&) = delete;
  ~listener();

  /// Non-blocking, close-on-exec.
  [[nodiscard]] int descriptor() const noexcept { return socket_.get(); }
  [[nodiscard]] int lock_descriptor() const noexcept { return lock_.get(); }
  /// Another process continues with copies of the descriptors: the destructor removes no files.
  void leave_files() noexcept { path_.clear(); }

 private:
  std::string path_;
  std::string lock_path_;
  dev_t device_ = 0;  // of the socket
  ino_t inode_ = 0;
  std::uint64_t created_in_ = base::fork_generation();
  base::guarded_fd lock_;
  base::guarded_fd socket_;
};

}  // namespace gpushm::transport
