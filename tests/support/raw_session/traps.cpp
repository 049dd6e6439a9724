// SPDX-License-Identifier: Apache-2.0
#include "tests/support/raw_session/traps.hpp"

#include <fcntl.h>
#include <linux/fuse.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/files/syscall.hpp"

namespace gpushm_testing {
namespace {

using gpushm::base::checked;
using gpushm::base::errno_text;
using gpushm::base::retry;
using gpushm::base::unique_fd;

constexpr std::uint64_t root_node = 1;
constexpr std::uint64_t file_node = 2;

unique_fd tcp_socket() {
  return unique_fd(checked(
      "trap", {}, "socket", [] { return ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0); }));
}

/// Answers one request; false when the file system has been unmounted.
class fuse_server {
 public:
  explicit fuse_server(int device) : device_(device), request_(1UL << 17U) {}

  bool serve_one() {
    const auto size = retry([&] { return ::read(device_, request_.data(), request_.size()); });
    if (size < static_cast<ssize_t>(sizeof(fuse_in_header))) {
      return size > 0 || errno == ENOENT;  // ENOENT: the request was interrupted
    }
    fuse_in_header incoming{};
    std::memcpy(&incoming, request_.data(), sizeof incoming);
    switch (incoming.opcode) {
      case FUSE_INIT: {
        fuse_init_out out{};
        out.major = FUSE_KERNEL_VERSION;
        out.minor = FUSE_KERNEL_MINOR_VERSION;
        out.max_write = 4096;
        return reply(incoming, 0, out);
      }
      case FUSE_LOOKUP: {
        fuse_entry_out out{};
        out.nodeid = file_node;
        out.attr = attributes(file_node);
        return reply(incoming, 0, out);
      }
      case FUSE_GETATTR: {
        fuse_attr_out out{};  // valid for no time: the next fstat sends a new request
        out.attr = attributes(incoming.nodeid);
        return reply(incoming, 0, out);
      }
      case FUSE_OPEN: {
        fuse_open_out out{};
        out.fh = 1;
        return reply(incoming, 0, out);
      }
      case FUSE_FORGET:
        return true;
      case FUSE_FLUSH:
      case FUSE_RELEASE:
        return reply_header(incoming, 0);
      default:
        return reply_header(incoming, -ENOSYS);
    }
  }

 private:
  static fuse_attr attributes(std::uint64_t node) {
    fuse_attr result{};
    result.ino = node;
    result.mode = node == root_node ? S_IFDIR | 0755U : S_IFREG | 0666U;
    result.nlink = 1;
    result.size = 4096;
    return result;
  }

  template <typename Out>
  bool reply(const fuse_in_header& fuse_in_header, int error, const Out& out) {
    fuse_out_header header{};
    header.len = sizeof header + sizeof out;
    header.error = error;
    header.unique = fuse_in_header.unique;
    std::array<char, sizeof header + sizeof out> packet{};
    std::memcpy(packet.data(), &header, sizeof header);
    std::memcpy(packet.data() + sizeof header, &out, sizeof out);
    return ::write(device_, packet.data(), packet.size()) > 0;
  }
  bool reply_header(const fuse_in_header& fuse_in_header, int error) {
    fuse_out_header header{};
    header.len = sizeof header;
    header.error = error;
    header.unique = fuse_in_header.unique;
    return ::write(device_, &header, sizeof header) > 0;
  }

  int device_;
  std::vector<char> request_;
};

/// Serves until `stop` is readable, then only keeps the file system alive.
[[noreturn]] void run_server(int device, int stop) {
  fuse_server server(device);
  std::array<pollfd, 2> entries{{{stop, POLLIN, 0}, {device, POLLIN, 0}}};
  do {
    retry([&] { return ::poll(entries.data(), entries.size(), -1); });
  } while (entries[0].revents == 0 && server.serve_one());
  while (true) {
    ::pause();
  }
}

}  // namespace

lingering_socket::lingering_socket(std::chrono::seconds linger) : listener(tcp_socket()) {
  const int small = 4096;
  ::setsockopt(listener.get(), SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  checked("trap", {}, "bind", [&] { return ::bind(listener.get(), generic, size); });
  checked("trap", {}, "listen", [&] { return ::listen(listener.get(), 1); });
  checked("trap", {}, "getsockname", [&] { return ::getsockname(listener.get(), generic, &size); });
  trap = tcp_socket();
  checked("trap", {}, "connect", [&] { return ::connect(trap.get(), generic, size); });
  peer = unique_fd(checked("trap", {}, "accept", [&] {
    return ::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC);
  }));
  const std::vector<char> filler(1UL << 16U, 'x');
  while (::send(trap.get(), filler.data(), filler.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {
  }
  const ::linger option{1, static_cast<int>(linger.count())};
  checked("trap", {}, "setsockopt", [&] {
    return ::setsockopt(trap.get(), SOL_SOCKET, SO_LINGER, &option, sizeof option);
  });
}

std::optional<int> silent_fuse_file(const std::string& directory, std::string& why_not) {
  const unique_fd device(::open("/dev/fuse", O_RDWR | O_CLOEXEC));
  if (!device) {
    why_not = "/dev/fuse: " + errno_text(errno);
    return std::nullopt;
  }
  const auto options =
      "fd=" + std::to_string(device.get()) + ",rootmode=40000,user_id=0,group_id=0,allow_other";
  if (::unshare(CLONE_NEWNS) != 0 ||
      ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount("fuse", directory.c_str(), "fuse", MS_NOSUID | MS_NODEV, options.c_str()) != 0) {
    why_not = "no FUSE file system can be mounted here: " + errno_text(errno);
    return std::nullopt;
  }
  std::array<int, 2> stop{};
  if (::pipe2(stop.data(), O_CLOEXEC) != 0) {
    why_not = "pipe2: " + errno_text(errno);
    return std::nullopt;
  }
  const unique_fd stop_read(stop[0]);
  const unique_fd stop_write(stop[1]);
  if (::fork() == 0) {
    run_server(device.get(), stop_read.get());
  }
  const auto path = directory + "/file";
  const int file = retry([&] { return ::open(path.c_str(), O_RDWR | O_CLOEXEC); });
  if (file < 0) {
    why_not = "the FUSE file cannot be opened: " + errno_text(errno);
    return std::nullopt;
  }
  (void)retry([&] { return ::write(stop_write.get(), "s", 1); });
  return file;
}

}  // namespace gpushm_testing
