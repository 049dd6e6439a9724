// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>
#include <sched.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/user.h>
#include <sys/wait.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "base/process/signals.hpp"

namespace gpushm_tests {

/// The thread with this name; 0: none.
[[nodiscard]] inline pid_t thread_named(pid_t process, const std::string& name) {
  const std::string tasks = "/proc/" + std::to_string(process) + "/task";
  std::error_code failed;
  for (const auto& each : std::filesystem::directory_iterator(tasks, failed)) {
    std::string found;
    std::getline(std::ifstream(each.path() / "comm"), found);
    if (found == name) {
      return std::stoi(each.path().filename());
    }
  }
  return 0;
}

/// A thread under ptrace.
class stepped_thread {
 public:
  explicit stepped_thread(pid_t thread) : thread_(thread) {
    share_one_cpu();
    is_attached_ = ::ptrace(PTRACE_SEIZE, thread, nullptr, PTRACE_O_TRACESYSGOOD) == 0 &&
                   ::ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr) == 0 && wait();
  }
  stepped_thread(const stepped_thread&) = delete;
  stepped_thread& operator=(const stepped_thread&) = delete;
  ~stepped_thread() {
    if (is_attached_) {
      ::ptrace(PTRACE_DETACH, thread_, nullptr, nullptr);
    }
  }
  [[nodiscard]] bool is_attached() const { return is_attached_; }

  /// Runs until it has stopped `count` times, or `ended` returns true. `request`:
  /// PTRACE_SINGLESTEP, it stops after each instruction; PTRACE_SYSCALL, at the begin and the end
  /// of each system call. Returns how often it has stopped.
  std::uint64_t run(__ptrace_request request,
                    std::uint64_t count,
                    const std::function<bool()>& ended) {
    // A system call can wait for the client, which has ended perhaps: then a signal ends waitpid.
    struct sigaction action {};
    action.sa_handler = [](int) {};
    ::sigaction(SIGUSR1, &action, nullptr);
    std::atomic<bool> has_ended = false;
    const std::jthread watch([&, tracer = ::pthread_self()](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        if (ended()) {
          has_ended = true;
          ::pthread_kill(tracer, SIGUSR1);
        }
      }
    });
    for (std::uint64_t done = 0; done < count; ++done) {
      if (has_ended || ::ptrace(request, thread_, nullptr, nullptr) != 0) {
        return done;
      }
      int status = 0;
      while (::waitpid(thread_, &status, __WALL) < 0) {
        if (has_ended) {
          ::ptrace(PTRACE_INTERRUPT, thread_, nullptr, nullptr);
          static_cast<void>(wait());
          return done;
        }
      }
      if (!WIFSTOPPED(status)) {
        is_attached_ = false;
        return done;
      }
    }
    return count;
  }
  /// Runs until `reached` returns true, which is asked at the begin and the end of each system
  /// call, at most so often. The thread must have something to do meanwhile. Returns whether it was
  /// reached.
  bool run_until(const std::function<bool()>& reached, std::uint64_t most) {
    for (std::uint64_t done = 0; done != most; ++done) {
      if (reached()) {
        return true;
      }
      if (::ptrace(PTRACE_SYSCALL, thread_, nullptr, nullptr) != 0 || !wait()) {
        return false;
      }
    }
    return false;
  }
#if defined(__x86_64__)
  /// The number of the system call that it has stopped at the begin of; nullopt: it has not.
  [[nodiscard]] std::optional<std::uint64_t> entered_call() const {
    __ptrace_syscall_info info{};
    // NOLINTNEXTLINE(cppcoreguidelines-pro-type-reinterpret-cast,performance-no-int-to-ptr)
    auto* const size = reinterpret_cast<void*>(sizeof info);
    if (::ptrace(PTRACE_GET_SYSCALL_INFO, thread_, size, &info) <= 0 ||
        info.op != PTRACE_SYSCALL_INFO_ENTRY) {
      return std::nullopt;
    }
    return info.entry.nr;
  }
  /// The call that it has entered returns this error, and has no effect. Returns whether it did.
  bool fail_call(int number) {
    user_regs_struct registers{};
    if (::ptrace(PTRACE_GETREGS, thread_, nullptr, &registers) != 0) {
      return false;
    }
    registers.orig_rax = SYS_getpid;  // allowed by each filter
    if (::ptrace(PTRACE_SETREGS, thread_, nullptr, &registers) != 0 ||
        ::ptrace(PTRACE_SYSCALL, thread_, nullptr, nullptr) != 0 || !wait() ||
        ::ptrace(PTRACE_GETREGS, thread_, nullptr, &registers) != 0) {
      return false;
    }
    registers.rax = static_cast<unsigned long long>(-static_cast<long long>(number));
    return ::ptrace(PTRACE_SETREGS, thread_, nullptr, &registers) == 0;
  }
#endif
  void kill(pid_t process) {
    gpushm::base::signal_process(process, SIGKILL);
    static_cast<void>(wait());
    is_attached_ = false;
  }

 private:
  bool wait() {
    int status = 0;
    pid_t found = -1;
    while ((found = ::waitpid(thread_, &status, __WALL)) < 0 && errno == EINTR) {
    }
    return found == thread_ && WIFSTOPPED(status);
  }
  /// Each step changes between the two threads, which is faster on one CPU.
  void share_one_cpu() const {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<unsigned>(::sched_getcpu()), &one);
    ::sched_setaffinity(0, sizeof one, &one);
    ::sched_setaffinity(thread_, sizeof one, &one);
  }

  pid_t thread_ = 0;
  bool is_attached_ = false;
};

}  // namespace gpushm_tests
