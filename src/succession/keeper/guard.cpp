// SPDX-License-Identifier: Apache-2.0
#include "succession/keeper/guard.hpp"

#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <string>
#include <string_view>

#include "base/files/fork_guard.hpp"
#include "base/files/syscall.hpp"
#include "base/files/unique_fd.hpp"
#include "base/process/deadline.hpp"
#include "base/process/signals.hpp"
#include "base/report/log.hpp"
#include "gpushm/error.hpp"
#include "succession/keeper/end_text.hpp"

namespace gpushm::keeper {

namespace {

using std::chrono::milliseconds;
using clock = std::chrono::steady_clock;

constexpr std::string_view operation = "keep descriptors";
/// The exit status of a worker that throws.
constexpr int work_failed = 1;
/// Before the next worker is started; doubled up to the longest, as long as they live shorter than
/// `short_life`. Meanwhile notifications wait, for which a program waits 2 s.
constexpr milliseconds first_delay{1};
constexpr milliseconds longest_delay{16};
constexpr milliseconds short_life{1'000};

/// A child with the same descriptor table. glibc's fork has no such flag; its handlers
/// (pthread_atfork) are not wanted, since they close descriptors. Returns as fork.
pid_t fork_with_descriptors() noexcept {
  return static_cast<pid_t>(
      ::syscall(SYS_clone, CLONE_FILES | SIGCHLD, nullptr, nullptr, nullptr, nullptr));
}

/// Returns nullopt if the guard has died.
std::optional<int> work(const guarded_work& work, pid_t guard_pid) noexcept {
  try {
    // Before this process has descriptors of its own: a forked child closes those of its parent.
    static_cast<void>(base::fork_generation());
    const base::unique_fd guard(static_cast<int>(::syscall(SYS_pidfd_open, guard_pid, 0)));
    if (::getppid() != guard_pid) {
      return std::nullopt;
    }
    if (!guard) {
      base::throw_errno(errno, operation, {}, "pidfd_open");
    }
    return work.run(guard.get());
  } catch (const std::exception& why) {
    base::log(log_level::error, why.what());
    return work_failed;
  }
}

/// Returns the status of the worker's end.
int guard(const guarded_work& work, pid_t worker) {
  // Programs of workers that have died become this process's children.
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  sigset_t awaited = work.signals;
  sigaddset(&awaited, SIGCHLD);
  for (;;) {
    // Reaps all: also children of workers that have died and, as PID 1, those of others.
    int status = 0;
    for (pid_t pid = 0; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
      if (pid == worker) {
        return status;
      }
    }
    const int number = ::sigwaitinfo(&awaited, nullptr);
    if (number > 0 && number != SIGCHLD) {
      work.note(number);
      base::signal_process(worker, number);
    }
  }
}

}  // namespace

int run_guarded(const guarded_work& guarded_work) {
  bool is_first = true;
  milliseconds delay{0};
  for (;;) {
    const pid_t self = ::getpid();
    const auto started = clock::now();
    const pid_t worker = fork_with_descriptors();
    if (worker == 0) {
      if (const auto status = work(guarded_work, self)) {
        ::_exit(*status);
      }
      base::log(log_level::warning, "one of the keeper's two processes has died: starting another");
      is_first = false;
      continue;
    }
    if (worker == -1) {
      if (is_first) {
        base::throw_errno(errno, operation, {}, "clone");
      }
      base::log(log_level::error, "clone: " + base::errno_text(errno) + "; trying again");
      base::pause_before_retry(longest_delay);
      continue;
    }
    is_first = false;
    const int status = guard(guarded_work, worker);
    if (WIFEXITED(status)) {
      return WEXITSTATUS(status);
    }
    delay = clock::now() - started >= short_life
                ? first_delay
                : std::clamp(delay * 2, first_delay, longest_delay);
    base::log(log_level::warning,
              "one of the keeper's two processes " + end_text(status) + ": starting another in " +
                  std::to_string(delay.count()) + " ms");
    base::pause_before_retry(delay);
  }
}

}  // namespace gpushm::keeper
