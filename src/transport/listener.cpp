// SPDX-License-Identifier: Apache-2.0
#include "transport/listener.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <utility>

#include "base/syscall.hpp"
#include "transport/address.hpp"

namespace gpushm::transport {

namespace {

[[noreturn]] void in_use(const std::string& path, std::string_view cause) {
  throw error(errc::address_in_use,
              "serve",
              path,
              cause,
              "use the broker that is there, stop it, or serve another path");
}

/// An exclusive lock that the kernel drops when this process dies. The lock file may be removed by
/// a broker that ends while we wait for it, so the locked file must still be the one at the path.
base::unique_fd lock_file(const std::string& path, const std::string& lock_path) {
  for (;;) {
    base::unique_fd lock(base::checked("serve", path, "open " + lock_path, [&] {
      return ::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    }));
    if (base::checked("serve",
                      path,
                      "flock",
                      [&] { return ::flock(lock.get(), LOCK_EX | LOCK_NB); },
                      {EWOULDBLOCK}) == -1) {
      in_use(path, "a live broker serves this socket");
    }
    struct stat ours {};
    struct stat there {};
    base::checked("serve", path, "fstat", [&] { return ::fstat(lock.get(), &ours); });
    if (::stat(lock_path.c_str(), &there) == 0 && ours.st_ino == there.st_ino &&
        ours.st_dev == there.st_dev) {
      return lock;
    }
  }
}

/// The lock is ours, so a socket at the path is a dead broker's, or no broker's at all.
void refuse_foreign_listener(const std::string& path, const sockaddr_un& address) {
  struct stat there {};
  if (::lstat(path.c_str(), &there) != 0) {
    return;
  }
  if (!S_ISSOCK(there.st_mode)) {
    in_use(path, "there is a file that is not a socket");
  }
  for (const int type : {SOCK_SEQPACKET, SOCK_STREAM, SOCK_DGRAM}) {
    const base::unique_fd probe(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ||
        errno == EAGAIN) {
      in_use(path, "another program listens on this socket");
    }
  }
}

}  // namespace

listener::listener(const std::string& path, mode_t mode, std::optional<gid_t> group) : path_(path) {
  const sockaddr_un address = unix_address("serve", path);
  const std::string temporary = path + ".new";
  const sockaddr_un bind_address = unix_address("serve", temporary);

  lock_ = lock_file(path, path + ".lock");
  refuse_foreign_listener(path, address);

  socket_ = base::unique_fd(base::checked("serve", path, "socket", [] {
    return ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  }));
  base::checked("serve", path, "unlink", [&] { return ::unlink(temporary.c_str()); }, {ENOENT});
  base::checked("serve", path, "bind", [&] {
    return ::bind(
        socket_.get(), reinterpret_cast<const sockaddr*>(&bind_address), sizeof bind_address);
  });
  try {
    if (group) {
      base::checked("serve", path, "chown", [&] {
        return ::chown(temporary.c_str(), static_cast<uid_t>(-1), *group);
      });
    }
    base::checked("serve", path, "chmod", [&] { return ::chmod(temporary.c_str(), mode); });
    // SOMAXCONN is cut to net.core.somaxconn by the kernel.
    base::checked("serve", path, "listen", [&] { return ::listen(socket_.get(), SOMAXCONN); });
    struct stat made {};
    base::checked("serve", path, "stat", [&] { return ::stat(temporary.c_str(), &made); });
    inode_ = made.st_ino;
    base::checked(
        "serve", path, "rename", [&] { return ::rename(temporary.c_str(), path.c_str()); });
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
}

listener::listener(listener&& other) noexcept
    : path_(std::exchange(other.path_, {})),
      inode_(other.inode_),
      lock_(std::move(other.lock_)),
      socket_(std::move(other.socket_)) {}

listener::~listener() {
  if (path_.empty()) {
    return;
  }
  struct stat there {};
  if (::lstat(path_.c_str(), &there) == 0 && there.st_ino == inode_) {
    ::unlink(path_.c_str());
  }
  ::unlink((path_ + ".lock").c_str());
}

}  // namespace gpushm::transport
