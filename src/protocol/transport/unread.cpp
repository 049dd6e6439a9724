// SPDX-License-Identifier: Apache-2.0
#include "protocol/transport/unread.hpp"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstddef>

#include "base/files/syscall.hpp"

namespace gpushm::transport {

unread first_unread(int socket) noexcept {
  const int on = 1;
  if (::setsockopt(socket, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) != 0) {
    return errno == ENOTSOCK || errno == EBADF ? unread::nothing : unread::unknown;
  }
  // Room for the credentials, which every packet has, and not for descriptors: there are some if
  // that is reported as too little.
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(ucred))> control{};
  for (;;) {
    msghdr header{};
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    const auto size =
        base::retry([&] { return ::recvmsg(socket, &header, MSG_PEEK | MSG_DONTWAIT); });
    if (size < 0 && errno == ECONNRESET) {  // reported once, before queued packets
      continue;
    }
    if (size < 0) {
      return errno == EAGAIN ? unread::nothing : unread::unknown;
    }
    if (header.msg_controllen == 0) {
      return unread::nothing;  // end of file
    }
    return (header.msg_flags & MSG_CTRUNC) != 0 ? unread::descriptors : unread::plain;
  }
}

}  // namespace gpushm::transport
