// SPDX-License-Identifier: Apache-2.0
#include "base/process/thread.hpp"

#include <pthread.h>

#include <csignal>
#include <system_error>
#include <utility>

#include "gpushm/error.hpp"

namespace gpushm::base {

namespace {

/// A new thread inherits the signal mask: no signal can reach it before it has blocked them.
class all_signals_blocked {
 public:
  all_signals_blocked() noexcept {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  all_signals_blocked(const all_signals_blocked&) = delete;
  all_signals_blocked& operator=(const all_signals_blocked&) = delete;
  ~all_signals_blocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
};

}  // namespace

std::jthread start_thread(const char* name, std::function<void()> run) {
  const all_signals_blocked blocked;
  try {
    return std::jthread([name = std::string(name), run = std::move(run)] {
      ::pthread_setname_np(::pthread_self(), name.c_str());
      run();
    });
  } catch (const std::system_error& why) {
    throw error(errc::system_error,
                "start a thread",
                name,
                why.code().message(),
                "raise the limit of processes (ulimit -u, or the pids limit of the cgroup)");
  }
}

}  // namespace gpushm::base
