// SPDX-License-Identifier: Apache-2.0
#include "protocol/transport/packet_socket.hpp"

#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <new>
#include <optional>
#include <utility>

#include "base/files/syscall.hpp"
#include "base/process/deadline.hpp"
#include "protocol/transport/address.hpp"
#include "protocol/transport/receive_call.hpp"
#include "protocol/transport/send_header.hpp"
#include "protocol/wire/messages.hpp"

namespace gpushm::transport {

namespace {

constexpr std::size_t control_bytes = CMSG_SPACE(sizeof(int) * wire::max_batch);

bool wait_for(int socket, short events, std::chrono::milliseconds timeout) {
  const auto deadline = base::deadline_after(timeout);
  for (;;) {
    const auto rest = base::time_left(deadline);
    pollfd entry{socket, events, 0};
    constexpr long longest = std::numeric_limits<int>::max();  // a longer wait polls again
    const int count =
        ::poll(&entry, 1, static_cast<int>(std::clamp<long>(rest.count(), 0, longest)));
    if (count > 0) {
      return true;
    }
    if (count == 0) {
      if (rest.count() > longest) {
        continue;
      }
      return false;
    }
    if (errno != EINTR) {
      base::throw_errno(errno, "wait", {}, "poll");
    }
  }
}

/// Returns nullopt if there is no memory for them, and closes them.
std::optional<std::vector<base::unique_fd>> take_descriptors(msghdr& header) noexcept {
  std::vector<base::unique_fd> result;
  bool fits = true;
  for (cmsghdr* entry = CMSG_FIRSTHDR(&header); entry != nullptr;
       entry = CMSG_NXTHDR(&header, entry)) {
    if (entry->cmsg_level != SOL_SOCKET || entry->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    const std::size_t count = (entry->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    try {
      result.reserve(result.size() + count);
    } catch (const std::bad_alloc&) {
      fits = false;
    }
    for (std::size_t i = 0; i < count; ++i) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(entry) + i * sizeof(int), sizeof(int));
      base::unique_fd fd(number);
      if (fits) {
        result.push_back(std::move(fd));
      }
    }
  }
  return fits ? std::optional(std::move(result)) : std::nullopt;
}

}  // namespace

// NOLINTNEXTLINE(cppcoreguidelines-pro-type-member-init): 1 KiB, filled below
send_header::send_header(std::span<const std::byte> packet, std::span<const int> descriptors)
    : part_{const_cast<std::byte*>(packet.data()), packet.size()} {
  if (descriptors.size() > wire::max_batch) {
    throw error(errc::too_many_descriptors,
                "send",
                {},
                std::to_string(descriptors.size()) + " descriptors in one packet",
                "send them in batches of at most 253");
  }
  header_.msg_iov = &part_;
  header_.msg_iovlen = 1;
  if (!descriptors.empty()) {
    header_.msg_control = control_.data();
    header_.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* entry = CMSG_FIRSTHDR(&header_);
    entry->cmsg_level = SOL_SOCKET;
    entry->cmsg_type = SCM_RIGHTS;
    entry->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(entry), descriptors.data(), descriptors.size_bytes());
  }
}

send_result result_of_failed_send() {
  switch (errno) {
    case EAGAIN:
      return send_result::would_block;
    case EPIPE:
    case ECONNRESET:
    case ENOTCONN:
      return send_result::closed;
    default:
      base::throw_errno(errno, "send", {}, "sendmsg");
  }
}

send_result send_packet(int socket,
                        std::span<const std::byte> packet,
                        std::span<const int> descriptors) {
  send_header header(packet, descriptors);
  const auto result =
      base::retry([&] { return ::sendmsg(socket, &header.get(), MSG_NOSIGNAL | MSG_DONTWAIT); });
  return result >= 0 ? send_result::sent : result_of_failed_send();
}

namespace {

/// Returns the size of the packet; nullopt: `status` says why. Throws.
std::optional<std::size_t> receive_into(int socket,
                                        msghdr& header,
                                        int flags,
                                        receive_status& status) {
  const auto size =
      receive_after_reset([&] { return ::recvmsg(socket, &header, MSG_DONTWAIT | flags); });
  if (size >= 0) {
    return static_cast<std::size_t>(size);
  }
  status = status_of_failed_receive();
  return std::nullopt;
}

received receive_with(int socket, std::span<std::byte> buffer, int flags) {
  iovec part{buffer.data(), buffer.size()};
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-member-init): 1 KiB, filled by the kernel
  alignas(cmsghdr) std::array<char, control_bytes> control;
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  received result;
  const auto size = receive_into(socket, header, MSG_CMSG_CLOEXEC | flags, result.status);
  if (!size) {
    return result;
  }
  auto taken = take_descriptors(header);
  if ((header.msg_flags & MSG_TRUNC) != 0) {
    result.status = receive_status::truncated;
    return result;
  }
  if ((header.msg_flags & MSG_CTRUNC) != 0 || !taken) {
    result.status = receive_status::descriptors_lost;
    result.packet = buffer.first(*size);
    return result;
  }
  result.descriptors = std::move(*taken);
  if (*size == 0 && result.descriptors.empty()) {
    // End of file; an empty packet looks the same and has no meaning.
    result.status = receive_status::closed;
    return result;
  }
  result.status = receive_status::packet;
  result.packet = buffer.first(*size);
  return result;
}

}  // namespace

receive_status status_of_failed_receive() {
  switch (errno) {
    case EAGAIN:
      return receive_status::would_block;
    case ECONNRESET:
    case ENOTCONN:
      return receive_status::closed;
    default:
      base::throw_errno(errno, "receive", {}, "recvmsg");
  }
}

received receive_packet(int socket, std::span<std::byte> buffer) {
  return receive_with(socket, buffer, 0);
}

received peek_packet(int socket, std::span<std::byte> buffer) {
  return receive_with(socket, buffer, MSG_PEEK);
}

peeked peek_bytes(int socket, std::span<std::byte> buffer) {
  iovec part{buffer.data(), buffer.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  peeked result;
  const auto size = receive_into(socket, header, MSG_PEEK, result.status);
  if (!size) {
    return result;
  }
  // Without a control buffer the kernel only reports that there are descriptors.
  result.has_descriptors = (header.msg_flags & MSG_CTRUNC) != 0;
  if ((header.msg_flags & MSG_TRUNC) != 0) {
    result.status = receive_status::truncated;
  } else if (*size == 0 && !result.has_descriptors) {
    result.status = receive_status::closed;
  } else {
    result.status = receive_status::packet;
    result.packet = buffer.first(*size);
  }
  return result;
}

received_guarded receive_guarded(int socket, std::span<std::byte> buffer) {
  const base::fork_section section;
  received got = receive_packet(socket, buffer);
  received_guarded result{got.status, got.packet, {}};
  try {
    result.descriptors = base::guard_all(std::move(got.descriptors));
  } catch (const std::bad_alloc&) {
    result.status = receive_status::descriptors_lost;
  }
  return result;
}

bool wait_readable(int socket, std::chrono::milliseconds timeout) {
  return wait_for(socket, POLLIN, timeout);
}

bool wait_writable(int socket, std::chrono::milliseconds timeout) {
  return wait_for(socket, POLLOUT, timeout);
}

base::guarded_fd connect_packet_socket(const std::string& path, std::chrono::milliseconds timeout) {
  const sockaddr_un address = unix_address("connect", path);
  auto socket = base::guarded_fd::open([&] {
    return base::checked("connect", path, "socket", [] {
      return ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    });
  });
  const auto deadline = base::deadline_after(timeout);
  for (;;) {
    const int result = base::retry([&] {
      return ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
    });
    if (result == 0) {
      return socket;
    }
    switch (errno) {
      case ENOENT:
        throw error(errc::broker_unreachable,
                    "connect",
                    path,
                    "the socket does not exist",
                    "start a broker with `gpushm serve`, or mount the domain's directory");
      case ECONNREFUSED:
        if (struct stat file{}; ::stat(path.c_str(), &file) == 0 && !S_ISSOCK(file.st_mode)) {
          throw error(errc::broker_unreachable,
                      "connect",
                      path,
                      S_ISDIR(file.st_mode) ? "this is a directory, not a broker's socket"
                                            : "this is a file, not a broker's socket",
                      "pass the path of the socket");
        }
        throw error(errc::broker_unreachable,
                    "connect",
                    path,
                    "no broker listens on this socket: its broker has exited",
                    "start a broker with `gpushm serve`; it replaces the socket");
      case EACCES:
      case EPERM:
        throw error(errc::permission_denied,
                    "connect",
                    path,
                    "this uid may not write to the socket or reach its directory",
                    "serve it with --mode 0666, or with --group and a group of this process");
      case EPROTOTYPE:
        throw error(errc::broker_unreachable,
                    "connect",
                    path,
                    "the socket is not a broker's: it has another type",
                    "check the path");
      case EAGAIN: {
        // The backlog is full. No event signals room in it, so retry until the deadline.
        if (std::chrono::steady_clock::now() >= deadline) {
          throw error(errc::broker_unreachable,
                      "connect",
                      path,
                      "the broker does not accept connections (its backlog is full)",
                      "try again with a longer timeout");
        }
        base::pause_before_retry(std::chrono::milliseconds(2));
        break;
      }
      default:
        base::throw_errno(errno, "connect", path, "connect");
    }
  }
}

packet_socket_pair connected_pair() {
  std::array<int, 2> ends{};
  packet_socket_pair result;
  result.first = base::guarded_fd::open([&] {
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) == 0) {
      result.second = base::guarded_fd(base::unique_fd(ends[1]));
      return ends[0];
    }
    if (errno == EMFILE || errno == ENFILE) {
      throw error(errc::too_many_descriptors,
                  {},
                  {},
                  "no descriptor is left for a connection's second socket",
                  "raise the open file limit");
    }
    base::throw_errno(errno, {}, {}, "socketpair");
  });
  return result;
}

int unread_bytes(int socket) noexcept {
  int count = 0;
  return ::ioctl(socket, SIOCOUTQ, &count) == 0 ? count : 0;
}

}  // namespace gpushm::transport
