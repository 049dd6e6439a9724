// SPDX-License-Identifier: Apache-2.0
#include "succession/descriptor_store/notification_socket.hpp"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>

#include "base/files/syscall.hpp"
#include "base/process/retry.hpp"
#include "gpushm/error.hpp"
#include "protocol/transport/address.hpp"
#include "protocol/wire/messages.hpp"
#include "succession/descriptor_store/notification.hpp"

namespace gpushm::keeper {

namespace {

constexpr std::string_view operation = "keep descriptors";

base::unique_fd new_socket(const std::string& path) {
  return base::unique_fd(base::checked(operation, path, "socket", [] {
    return ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  }));
}

/// Whether a process has the socket at this path.
bool is_in_use(const std::string& path, const sockaddr_un& address) {
  // With a socket of its own: one that was connected once receives from its peer only.
  const base::unique_fd socket = new_socket(path);
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-reinterpret-cast): as connect expects
  return ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
}

}  // namespace

base::unique_fd bind_notification_socket(const std::string& path) {
  const sockaddr_un address = transport::unix_address(operation, path);
  base::retry_while_in_use(base::deadline_after(base::dying_process_timeout), [&] {
    if (is_in_use(path, address)) {
      throw error(errc::address_in_use,
                  std::string(operation),
                  path,
                  "a living keeper has this socket",
                  "give each keeper a socket of its own (--socket)");
    }
  });
  base::unique_fd socket = new_socket(path);
  ::unlink(path.c_str());
  base::checked(operation, path, "bind", [&] {
    // NOLINTNEXTLINE(cppcoreguidelines-pro-type-reinterpret-cast): as bind expects
    return ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  });
  const int on = 1;
  base::checked(operation, path, "setsockopt(SO_PASSCRED)", [&] {
    return ::setsockopt(socket.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof(on));
  });
  return socket;
}

received_notification peek_notification(int socket) {
  std::array<char, max_notification_bytes> buffer{};
  alignas(cmsghdr)
      std::array<char, CMSG_SPACE(sizeof(int) * wire::max_batch) + CMSG_SPACE(sizeof(ucred))>
          control{};
  iovec part{buffer.data(), buffer.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  // Without MSG_CMSG_CLOEXEC: they are for the program. The handlers of fork_guard.hpp replace
  // driver files that are close-on-exec, among them GPU memory.
  const auto size =
      base::retry([&] { return ::recvmsg(socket, &header, MSG_DONTWAIT | MSG_PEEK); });
  received_notification result;
  if (size < 0) {
    return result;
  }
  result.any = true;
  result.incomplete = (header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0;
  for (cmsghdr* entry = CMSG_FIRSTHDR(&header); entry != nullptr;
       entry = CMSG_NXTHDR(&header, entry)) {
    if (entry->cmsg_level != SOL_SOCKET) {
      continue;
    }
    if (entry->cmsg_type == SCM_CREDENTIALS) {
      ucred who{};
      std::memcpy(&who, CMSG_DATA(entry), sizeof(who));
      result.from_user = who.uid == ::geteuid();
    } else if (entry->cmsg_type == SCM_RIGHTS) {
      const std::size_t count = (entry->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (std::size_t i = 0; i < count; ++i) {
        int number = -1;
        std::memcpy(&number, CMSG_DATA(entry) + i * sizeof(int), sizeof(int));
        result.descriptors.emplace_back(number);
      }
    }
  }
  result.text.assign(buffer.data(), static_cast<std::size_t>(size));
  return result;
}

void remove_notification(int socket) noexcept {
  msghdr header{};  // no room: the packet is dropped. Not recv: gpushm-brokerd refuses recvfrom
  base::retry([&] { return ::recvmsg(socket, &header, MSG_DONTWAIT); });
}

}  // namespace gpushm::keeper
