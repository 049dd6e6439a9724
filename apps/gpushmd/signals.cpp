// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushmd/signals.hpp"

#include <poll.h>
#include <pthread.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <csignal>

#include "base/files/syscall.hpp"

namespace gpushm::agent {

namespace {
constexpr const char* operation = "handle signals";
}  // namespace

signals::signals() {
  sigset_t mask;
  sigemptyset(&mask);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    sigaddset(&mask, number);
  }
  ::pthread_sigmask(SIG_BLOCK, &mask, nullptr);
  signals_ = base::unique_fd(base::checked(operation, {}, "signalfd", [&] {
    return ::signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
  }));
}

std::optional<signals::kind> signals::next(std::chrono::milliseconds timeout, int other) {
  std::array<pollfd, 2> waits{{{signals_.get(), POLLIN, 0}, {other, POLLIN, 0}}};
  if (::poll(waits.data(), waits.size(), static_cast<int>(timeout.count())) <= 0) {
    return std::nullopt;
  }
  signalfd_siginfo what{};
  if (base::retry([&] { return ::read(signals_.get(), &what, sizeof what); }) == sizeof what) {
    return what.ssi_signo == SIGHUP ? kind::reload : kind::stop;
  }
  return std::nullopt;
}

}  // namespace gpushm::agent
