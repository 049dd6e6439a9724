// SPDX-License-Identifier: Apache-2.0
#include "tests/support/ptrace/tracer.hpp"

#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <csignal>

#include "base/files/syscall.hpp"
#include "base/process/signals.hpp"
#include "tests/support/process/harness_error.hpp"
#include "tests/support/ptrace/marker.hpp"
#include "tests/support/ptrace/syscall_names.hpp"

namespace gpushm_testing {
namespace {

using gpushm::base::errno_text;
using gpushm::base::retry;

// ptrace(2) passes numbers as pointers.
void* as_data(std::uintptr_t value) {
  return reinterpret_cast<void*>(value);  // NOLINT(performance-no-int-to-ptr)
}

class follower {
 public:
  follower(pid_t pid, std::uint64_t kill_at) : pid_(pid), kill_at_(kill_at) {}

  trace_result run() {
    while (true) {
      int status = 0;
      // __WNOTHREAD: other threads of this process have children, too.
      const pid_t task = retry([&] { return ::waitpid(-1, &status, __WALL | __WNOTHREAD); });
      if (task < 0) {
        throw harness_error("waitpid of the traced program: " + errno_text(errno));
      }
      if (WIFSTOPPED(status)) {
        on_stop(task, status);
      } else if (task == pid_) {
        result_.wait_status = status;
        return result_;
      }
    }
  }

 private:
  void on_stop(pid_t task, int status) {
    const int signal_number = WSTOPSIG(status);
    const int event = status >> 16;
    if (signal_number == (SIGTRAP | 0x80)) {
      on_call(task);
      resume(task, 0);
    } else if (event == PTRACE_EVENT_STOP && signal_number != SIGTRAP) {
      ::ptrace(PTRACE_LISTEN, task, nullptr, nullptr);  // a group stop lasts until SIGCONT
    } else {
      resume(task, event != 0 ? 0 : signal_number);
    }
  }

  static void resume(pid_t task, int signal_number) {
    // Fails if SIGKILL has ended the task; waitpid then reports its end.
    ::ptrace(PTRACE_SYSCALL, task, nullptr, as_data(static_cast<std::uintptr_t>(signal_number)));
  }

  void on_call(pid_t task) {
    __ptrace_syscall_info info{};
    if (::ptrace(PTRACE_GET_SYSCALL_INFO, task, as_data(sizeof info), &info) <= 0 ||
        info.op != PTRACE_SYSCALL_INFO_ENTRY) {
      return;
    }
    if (info.entry.nr == SYS_getpriority && info.entry.args[0] == begin_mark) {
      result_.began = true;
    } else if (info.entry.nr == SYS_getpriority && info.entry.args[0] == end_mark) {
      result_.ended = true;
    } else if (result_.began && !result_.ended && !result_.killed) {
      count(task, info.entry.nr);
    }
  }

  void count(pid_t task, std::uint64_t number) {
    if (++result_.calls == kill_at_) {
      result_.killed = true;
      result_.fatal_call = syscall_name(number);
      result_.fatal_in_main = task == pid_;
      gpushm::base::signal_process(pid_, SIGKILL);
    }
  }

  pid_t pid_;
  std::uint64_t kill_at_;
  trace_result result_;
};

}  // namespace

void trace_attach(pid_t pid) {
  // Threads are followed. Forked children are not attached to: the kernel would kill them when this
  // process exits.
  constexpr std::uintptr_t options =
      PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL;
  // Seizing does not stop the task, and only a stopped task can be set to stop at system calls.
  if (::ptrace(PTRACE_SEIZE, pid, nullptr, as_data(options)) != 0 ||
      ::ptrace(PTRACE_INTERRUPT, pid, nullptr, nullptr) != 0) {
    throw harness_error("ptrace of process " + std::to_string(pid) + ": " + errno_text(errno));
  }
}

trace_result trace_to_end(pid_t pid, std::uint64_t kill_at) {
  return follower(pid, kill_at).run();
}

}  // namespace gpushm_testing
