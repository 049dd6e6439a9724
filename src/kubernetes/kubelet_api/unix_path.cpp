// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/kubelet_api/unix_path.hpp"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "base/files/unique_fd.hpp"

namespace gpushm::kubelet {

bool has_no_listener(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() > max_socket_path_bytes) {
    return false;
  }
  std::memcpy(static_cast<char*>(address.sun_path), path.c_str(), path.size() + 1);
  const base::unique_fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-reinterpret-cast): how socket addresses are passed
  const auto* const generic = reinterpret_cast<const sockaddr*>(&address);
  return socket && ::connect(socket.get(), generic, sizeof address) != 0 && errno == ECONNREFUSED;
}

}  // namespace gpushm::kubelet
