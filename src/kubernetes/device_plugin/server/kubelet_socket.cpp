// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/device_plugin/server/kubelet_socket.hpp"

#include <sys/stat.h>

namespace gpushm::device_plugin {

std::optional<socket_identity> socket_at(const std::string& path) noexcept {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 || !S_ISSOCK(status.st_mode)) {
    return std::nullopt;
  }
  return socket_identity{
      status.st_dev, status.st_ino, status.st_mtim.tv_sec, status.st_mtim.tv_nsec};
}

bool is_directory(const std::string& path) noexcept {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

}  // namespace gpushm::device_plugin
