// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/segment/readiness.hpp"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/files/syscall.hpp"
#include "base/files/unique_fd.hpp"

namespace gpushm::cli {

bool notify_service_manager(std::string_view state) noexcept {
  const char* variable =
      std::getenv("NOTIFY_SOCKET");  // NOLINT(concurrency-mt-unsafe): never set here
  if (variable == nullptr || *variable == '\0') {
    return true;
  }
  const std::string_view path(variable);
  sockaddr_un address{};
  if ((path[0] != '/' && path[0] != '@') || path.size() >= sizeof address.sun_path) {
    return false;
  }
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  if (path[0] == '@') {
    address.sun_path[0] = '\0';  // the abstract namespace
  }
  const base::unique_fd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) {
    return false;
  }
  // An abstract name is delimited by the length, not by a zero byte.
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  const auto sent = base::retry([&] {
    return ::sendto(socket.get(),
                    state.data(),
                    state.size(),
                    MSG_NOSIGNAL,
                    reinterpret_cast<const sockaddr*>(&address),
                    length);
  });
  return sent == static_cast<ssize_t>(state.size());
}

void notify_ready_fd(int fd) {
  const base::unique_fd owned(fd);
  base::checked("write to --ready-fd", std::to_string(fd), "write", [&] {
    return ::write(owned.get(), "\n", 1);
  });
}

}  // namespace gpushm::cli
