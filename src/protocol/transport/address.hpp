// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <string>
#include <string_view>

#include "gpushm/error.hpp"

namespace gpushm::transport {

/// The address of a path. Throws `errc::invalid_argument` if it is empty or too long (more than 107
/// bytes).
[[nodiscard]] inline sockaddr_un unix_address(std::string_view operation, const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path ||
      path.find('\0') != std::string::npos) {
    throw error(errc::invalid_argument,
                operation,
                path,
                path.empty() ? "the socket's path is empty"
                             : "the socket's path does not fit into an address (at most 107 bytes)",
                "give a shorter path, for instance a relative one");
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

}  // namespace gpushm::transport
