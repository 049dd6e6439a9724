// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "base/files/guarded_fd.hpp"

namespace gpushm::transport {

/// A file, as stat(2) identifies it.
struct file_identity {
  dev_t device = 0;
  ino_t inode = 0;
  friend bool operator==(const file_identity&, const file_identity&) = default;
};

/// Returns the identity of the file at `path`, of the link itself if it is a symbolic link; nullopt
/// if there is none.
[[nodiscard]] std::optional<file_identity> identity_of(const std::string& path) noexcept;

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
  /// Continues with the descriptors of another listener, whose `file()` is `file`. The destructor
  /// removes no files, unless `removes_files`. Throws `errc::invalid_argument` if they are not a
  /// locked file and a listening socket.
  listener(const std::string& path,
           base::guarded_fd lock,
           base::guarded_fd socket,
           const file_identity& file = {},
           bool removes_files = false);
  listener(listener&& other) noexcept;

  struct bound_socket {
    base::guarded_fd socket;
    file_identity file;
  };
  /// Another socket at the same path, with the same lock: the file, or its directory, has been
  /// removed or replaced. This object is unchanged. Throws as the first constructor.
  [[nodiscard]] bound_socket bind_again(mode_t mode, std::optional<gid_t> group) const;
  /// Continues with it; closes the socket before.
  void adopt(bound_socket next) noexcept;
  listener& operator=(listener&&) = delete;
  listener(const listener&) = delete;
  listener& operator=(const listener&) = delete;
  ~listener();

  /// Non-blocking, close-on-exec.
  [[nodiscard]] int descriptor() const noexcept { return socket_.get(); }
  [[nodiscard]] int lock_descriptor() const noexcept { return lock_.get(); }
  /// The socket's file.
  [[nodiscard]] const file_identity& file() const noexcept { return file_; }
  [[nodiscard]] bool removes_files() const noexcept { return removes_files_; }
  /// Another process continues with copies of the descriptors: the destructor removes no files.
  void leave_files() noexcept { removes_files_ = false; }
  /// The lock and the socket; the destructor does nothing.
  [[nodiscard]] std::pair<base::guarded_fd, base::guarded_fd> release() && noexcept {
    leave_files();
    return {std::move(lock_), std::move(socket_)};
  }

 private:
  std::string path_;
  std::string lock_path_;
  file_identity file_;
  bool removes_files_ = true;
  std::uint64_t created_in_ = base::fork_generation();
  base::guarded_fd lock_;
  base::guarded_fd socket_;
};

}  // namespace gpushm::transport
