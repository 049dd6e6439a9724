// SPDX-License-Identifier: Apache-2.0
#include "protocol/transport/listener.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <utility>

#include "base/files/domain_places.hpp"
#include "base/files/syscall.hpp"
#include "protocol/transport/address.hpp"

namespace gpushm::transport {

std::optional<file_identity> identity_of(const std::string& path) noexcept {
  struct stat found {};
  return ::lstat(path.c_str(), &found) == 0
             ? std::optional(file_identity{found.st_dev, found.st_ino})
             : std::nullopt;
}

namespace {

[[noreturn]] void in_use(const std::string& path, std::string_view cause) {
  throw error(errc::address_in_use,
              "serve",
              path,
              cause,
              "use the existing broker, stop it, or serve another path");
}

bool is_still_at(const std::string& path, int fd) {
  struct stat locked {};
  return ::fstat(fd, &locked) == 0 &&
         identity_of(path) == file_identity{locked.st_dev, locked.st_ino};
}

/// An exclusive lock that the kernel releases when this process dies. An exiting broker may remove
/// the lock file while this one waits for it, so the locked file must still be the one at the path.
base::guarded_fd lock_file(const std::string& path, const std::string& lock_path) {
  for (;;) {
    auto lock = base::guarded_fd::open([&] {
      return base::checked("serve", path, "open " + lock_path, [&] {
        return ::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
      });
    });
    if (base::checked("serve",
                      path,
                      "flock",
                      [&] { return ::flock(lock.get(), LOCK_EX | LOCK_NB); },
                      {EWOULDBLOCK}) == -1) {
      in_use(path, "a live broker serves this socket");
    }
    if (is_still_at(lock_path, lock.get())) {
      return lock;
    }
  }
}

/// This process has the lock, so a socket at the path belongs to a dead broker, or not to a broker.
void reject_other_listener(const std::string& path) {
  struct stat current {};
  if (::lstat(path.c_str(), &current) != 0) {
    return;
  }
  if (!S_ISSOCK(current.st_mode)) {
    throw error(errc::address_in_use,
                "serve",
                path,
                S_ISDIR(current.st_mode) ? "the path is a directory, not that of a socket"
                                         : "the path is a file that is not a socket",
                "serve another path; nothing but a socket is replaced");
  }
  for (const int type : {SOCK_SEQPACKET, SOCK_STREAM, SOCK_DGRAM}) {
    if (base::is_listening(path, type)) {
      in_use(path, "another program listens on this socket");
    }
  }
}

/// With the lock.
listener::bound_socket bind_at(const std::string& path, mode_t mode, std::optional<gid_t> group) {
  const std::string temporary = path + ".new";
  const sockaddr_un bind_address = unix_address("serve", temporary);
  reject_other_listener(path);

  listener::bound_socket result;
  result.socket = base::guarded_fd::open([&] {
    return base::checked("serve", path, "socket", [] {
      return ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    });
  });
  base::checked("serve", path, "unlink", [&] { return ::unlink(temporary.c_str()); }, {ENOENT});
  base::checked("serve", path, "bind", [&] {
    return ::bind(
        result.socket.get(), reinterpret_cast<const sockaddr*>(&bind_address), sizeof bind_address);
  });
  try {
    if (group) {
      base::checked("serve", path, "chown", [&] {
        return ::chown(temporary.c_str(), static_cast<uid_t>(-1), *group);
      });
    }
    base::checked("serve", path, "chmod", [&] { return ::chmod(temporary.c_str(), mode); });
    // The kernel limits SOMAXCONN to net.core.somaxconn.
    base::checked(
        "serve", path, "listen", [&] { return ::listen(result.socket.get(), SOMAXCONN); });
    base::checked("serve", path, "stat", [&] {
      const auto found = identity_of(temporary);
      result.file = found.value_or(file_identity());
      return found ? 0 : -1;
    });
    base::checked(
        "serve", path, "rename", [&] { return ::rename(temporary.c_str(), path.c_str()); });
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  return result;
}

}  // namespace

listener::listener(const std::string& path,
                   mode_t mode,
                   std::optional<gid_t> group,
                   const std::string& lock_path)
    : path_(path), lock_path_(lock_path.empty() ? path + ".lock" : lock_path) {
  for (const char* const suffix : {"", ".new"}) {  // before the lock's file exists
    static_cast<void>(unix_address("serve", path + suffix));
  }
  lock_ = lock_file(path, lock_path_);
  adopt(bind_again(mode, group));
}

listener::bound_socket listener::bind_again(mode_t mode, std::optional<gid_t> group) const {
  return bind_at(path_, mode, group);
}

void listener::adopt(bound_socket next) noexcept {
  socket_ = std::move(next.socket);
  file_ = next.file;
}

listener::listener(const std::string& path,
                   base::guarded_fd lock,
                   base::guarded_fd socket,
                   const file_identity& file,
                   bool removes_files)
    : path_(path),
      lock_path_(path + ".lock"),
      file_(file),
      removes_files_(removes_files),
      lock_(std::move(lock)),
      socket_(std::move(socket)) {
  int listening = 0;
  socklen_t length = sizeof(listening);
  if (::getsockopt(socket_.get(), SOL_SOCKET, SO_ACCEPTCONN, &listening, &length) != 0 ||
      listening == 0 || ::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    throw error(errc::invalid_argument,
                "serve",
                path,
                "the inherited descriptors are not a listening socket and its lock",
                "start the broker without them; its clients connect again");
  }
}

listener::listener(listener&& other) noexcept
    : path_(std::move(other.path_)),
      lock_path_(std::move(other.lock_path_)),
      file_(other.file_),
      removes_files_(std::exchange(other.removes_files_, false)),
      created_in_(other.created_in_),
      lock_(std::move(other.lock_)),
      socket_(std::move(other.socket_)) {}

listener::~listener() {
  if (!removes_files_ || base::is_forked_child_of(created_in_)) {
    return;
  }
  if (identity_of(path_) == file_) {
    ::unlink(path_.c_str());
  }
  // The directory may have been replaced by now, and the file may be another broker's.
  if (is_still_at(lock_path_, lock_.get())) {
    ::unlink(lock_path_.c_str());
  }
}

}  // namespace gpushm::transport
