// SPDX-License-Identifier: Apache-2.0
#include "apps/support/stop_signal.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>

#include "base/files/syscall.hpp"

namespace gpushm::app {

namespace {

// Written by the signal handler; never closed.
std::atomic<int> event_fd{-1};

void note_signal(int) {
  const int saved = errno;
  const std::uint64_t one = 1;
  // The counter cannot overflow: that would take 2^64 signals.
  [[maybe_unused]] const auto written = ::write(event_fd.load(), &one, sizeof one);
  errno = saved;
}

}  // namespace

stop_signal::stop_signal() {
  event_fd = base::checked(
      "handle signals", {}, "eventfd", [] { return ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
  struct sigaction action {};
  action.sa_handler = note_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    base::checked(
        "handle signals", {}, "sigaction", [&] { return ::sigaction(number, &action, nullptr); });
  }
}

bool stop_signal::wait(std::chrono::milliseconds timeout) const {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd waiting{fd(), POLLIN, 0};
    const int count = ::poll(&waiting, 1, left.count() < 0 ? 0 : static_cast<int>(left.count()));
    if (count > 0) {
      return true;
    }
    // A signal interrupts poll despite SA_RESTART; the next iteration then sees the event.
    if (count == 0 && left.count() <= 0) {
      return false;
    }
  }
}

int stop_signal::fd() noexcept {
  return event_fd.load();
}

}  // namespace gpushm::app
