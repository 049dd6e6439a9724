// SPDX-License-Identifier: Apache-2.0
#include "protocol/transport/credentials.hpp"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <charconv>

#include "base/files/file.hpp"
#include "base/files/syscall.hpp"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77  // Linux 6.5, include/uapi/asm-generic/socket.h
#endif

namespace gpushm::transport {

namespace {

/// The uid that the kernel reports for uids without a mapping in this user namespace (65534 unless
/// configured).
std::uint32_t overflow_uid() {
  static const std::uint32_t value = [] {
    std::uint32_t number = 65534;
    if (const auto text = base::read_small_file("/proc/sys/kernel/overflowuid")) {
      std::from_chars(text->data(), text->data() + text->size(), number);
    }
    return number;
  }();
  return value;
}

/// In the initial user namespace every uid is mapped, including 65534.
bool every_uid_is_mapped() {
  static const bool value = [] {
    const auto map = base::read_small_file("/proc/self/uid_map");
    return map && map->find("4294967295") != std::string::npos;
  }();
  return value;
}

}  // namespace

peer_credentials peer_of(int socket) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  base::checked("accept", {}, "SO_PEERCRED", [&] {
    return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size);
  });
  return {credentials.pid,
          credentials.uid,
          credentials.gid,
          credentials.uid != overflow_uid() || every_uid_is_mapped()};
}

bool kernel_names_peers() noexcept {
  static const bool does = [] {
    std::array<int, 2> ends{-1, -1};
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
      return false;
    }
    const base::unique_fd near(ends[0]);
    const base::unique_fd far(ends[1]);
    int fd = -1;
    socklen_t size = sizeof fd;
    const bool replied = ::getsockopt(near.get(), SOL_SOCKET, SO_PEERPIDFD, &fd, &size) == 0;
    const base::unique_fd own(fd);
    return replied;
  }();
  return does;
}

base::unique_fd pidfd_of_peer(int socket, const peer_credentials& peer) noexcept {
  int fd = -1;
  socklen_t size = sizeof fd;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &size) == 0) {
    return base::unique_fd(fd);
  }
  if (peer.pid <= 0 || kernel_names_peers()) {
    return {};  // dead already: its number may be another process's by now
  }
  // Older kernels: by number. The peer is connected, so the number was valid a moment ago.
  return base::unique_fd(static_cast<int>(::syscall(SYS_pidfd_open, peer.pid, 0)));
}

}  // namespace gpushm::transport
