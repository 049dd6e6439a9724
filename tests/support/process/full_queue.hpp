// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>

#include "base/files/unique_fd.hpp"

namespace gpushm_testing {

/// Fills the queue of a notification socket (sd_notify) with what its reader does not know. Returns
/// the errno of the last attempt: EAGAIN if the queue is full.
inline int fill_queue_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(&address.sun_path[0], path.data(), path.size());
  std::size_t sent = 0;
  do {  // a socket may have less room than the queue
    const gpushm::base::unique_fd socket(
        ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sent = 0;
    while (::sendto(socket.get(),
                    "STATUS=",
                    7,
                    0,
                    reinterpret_cast<const sockaddr*>(&address),
                    sizeof address) > 0) {
      ++sent;
    }
    if (errno != EAGAIN) {
      return errno;
    }
  } while (sent != 0);
  return EAGAIN;
}

}  // namespace gpushm_testing
