// SPDX-License-Identifier: Apache-2.0
#include "succession/keeper/closing_child.hpp"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <exception>

#include "base/files/syscall.hpp"
#include "base/report/log.hpp"
#include "protocol/transport/packet_socket.hpp"
#include "protocol/transport/unread.hpp"

namespace gpushm::keeper {

namespace {

constexpr std::chrono::seconds start_timeout{5};
constexpr char started = 's';

/// In the child. `kept`: the descriptors that it closes last, and `link`, in this order.
[[noreturn]] void wait_and_exit(const std::vector<int>& kept, int link) noexcept {
  ::prctl(PR_SET_NAME, "gpushm-closing");
  // Copies of what the keeper still has: if this process stays, they must not.
  int from = 0;
  for (const int each : kept) {
    if (from < each) {
      ::syscall(SYS_close_range, from, each - 1, 0);
    }
    from = each + 1;
  }
  ::syscall(SYS_close_range, from, ~0U, 0);
  char byte = started;
  [[maybe_unused]] const auto written = ::write(link, &byte, 1);
  // Until the keeper has closed its descriptors, or both its processes are dead.
  [[maybe_unused]] const auto end = base::retry([&] { return ::read(link, &byte, 1); });
  ::_exit(0);
}

}  // namespace

bool may_block_when_closed(int descriptor) noexcept {
  int type = 0;
  socklen_t size = sizeof type;
  if (::getsockopt(descriptor, SOL_SOCKET, SO_TYPE, &type, &size) != 0) {
    return false;
  }
  pollfd entry{descriptor, POLLIN | POLLRDHUP, 0};
  if (base::retry([&] { return ::poll(&entry, 1, 0); }) <= 0 || (entry.revents & POLLIN) == 0) {
    return false;
  }
  // A socket that is not shut down may also belong to another process: nothing is changed.
  return (entry.revents & POLLRDHUP) == 0 ||
         transport::first_unread(descriptor) != transport::unread::nothing;
}

void close_in_child(std::vector<base::unique_fd> descriptors) noexcept {
  if (descriptors.empty()) {
    return;
  }
  try {
    std::array<int, 2> ends{};
    base::checked("close descriptors", {}, "socketpair", [&] {
      return ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data());
    });
    const base::unique_fd link(ends[0]);
    base::unique_fd childs_end(ends[1]);
    std::vector<int> kept{childs_end.get()};
    for (const base::unique_fd& each : descriptors) {
      kept.push_back(each.get());
    }
    std::sort(kept.begin(), kept.end());
    // Not fork: its handlers close descriptors, and are not wanted.
    const auto child = base::checked("close descriptors", {}, "clone", [] {
      return ::syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr);
    });
    if (child == 0) {
      wait_and_exit(kept, childs_end.get());
    }
    childs_end.reset();
    static_cast<void>(transport::wait_readable(link.get(), start_timeout));
    descriptors.clear();  // the child's are the last ones, and its end closes them
  } catch (const std::exception& why) {
    base::log(log_level::warning, why.what());
  }
}

}  // namespace gpushm::keeper
