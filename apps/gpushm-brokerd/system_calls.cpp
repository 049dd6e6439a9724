// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm-brokerd/system_calls.hpp"

#include <sched.h>
#include <seccomp.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <memory>
#include <string>
#include <vector>

#include "base/files/syscall.hpp"
#include "gpushm/error.hpp"

namespace gpushm::app {

namespace {

constexpr std::string_view operation = "limit system calls";

constexpr std::string_view memory = "memory";
constexpr std::string_view tables = "journals and state tables, which are memfds";
constexpr std::string_view threads = "threads and their locks";
constexpr std::string_view sockets = "clients, keeper and private socket";
constexpr std::string_view descriptors = "descriptors of members: what they are, and their end";
constexpr std::string_view event_loop = "event loops";
constexpr std::string_view files = "directories, locks and sockets of domains";
constexpr std::string_view signals = "signals";
constexpr std::string_view process = "this process: its ids, limits and end";
constexpr std::string_view time = "time";
constexpr std::string_view output = "log, and waking a thread";
constexpr std::string_view facts =
    "control groups of members, and limits of this machine, in /proc and /sys";

constexpr std::array needed{
    system_call{"accept4", sockets},
    system_call{"access", files},
    system_call{"arch_prctl", threads},
    system_call{"bind", sockets},
    system_call{"brk", memory},
    system_call{"chmod", files},
    system_call{"chown", files},
    system_call{"clock_gettime", time},
    system_call{"clock_nanosleep", time},
    system_call{"close", descriptors},
    system_call{"close_range",
                "a descriptor table of its own for threads that receive descriptors"},
    system_call{"connect", "the keeper; a socket whose broker may be dead"},
    system_call{"epoll_create1", event_loop},
    system_call{"epoll_ctl", event_loop},
    system_call{"epoll_pwait", event_loop},
    system_call{"epoll_wait", event_loop},
    system_call{"eventfd2", event_loop},
    system_call{"exit", threads},
    system_call{"exit_group", process},
    system_call{"faccessat", files},
    system_call{"fallocate", tables},
    system_call{"fchmod", files},
    system_call{"fchmodat", files},
    system_call{"fchown", files},
    system_call{"fchownat", files},
    system_call{"fcntl", descriptors},
    system_call{"flock", files},
    system_call{"fstat", descriptors},
    system_call{"fstatfs", descriptors},
    system_call{"ftruncate", tables},
    system_call{"futex", threads},
    system_call{"get_robust_list", threads},
    system_call{"getdents64", files},
    system_call{"geteuid", process},
    system_call{"getpid", process},
    system_call{"getrandom", "epochs and tokens"},
    system_call{"getsockname", sockets},
    system_call{"getsockopt", "credentials of members"},
    system_call{"gettid", threads},
    system_call{"ioctl", "bytes that a member has not read"},
    system_call{"listen", sockets},
    system_call{"lseek", "timeline pages: what of them their members have filled"},
    system_call{"madvise", memory},
    system_call{"memfd_create", tables},
    system_call{"mkdir", files},
    system_call{"mkdirat", files},
    system_call{"mremap", memory},
    system_call{"munmap", memory},
    system_call{"nanosleep", time},
    system_call{"newfstatat", files},
    system_call{"openat", facts},
    system_call{"pidfd_open", descriptors},
    system_call{"pipe2", "telling a forked child from its parent (base/fork_guard)"},
    system_call{"poll", event_loop},
    system_call{"ppoll", event_loop},
    system_call{"pread64", "names of inherited descriptors; the list of segments"},
    system_call{"prctl", process},
    system_call{"prlimit64", process},
    system_call{"pwrite64", "the list of segments"},
    system_call{"read", facts},
    system_call{"readlink", descriptors},
    system_call{"readlinkat", descriptors},
    system_call{"recvmmsg", sockets},
    system_call{"recvmsg", sockets},
    system_call{"rename", files},
    system_call{"renameat", files},
    system_call{"restart_syscall", time},
    system_call{"rmdir", files},
    system_call{"rseq", threads},
    system_call{"rt_sigaction", signals},
    system_call{"rt_sigprocmask", signals},
    system_call{"rt_sigtimedwait", signals},
    system_call{"sched_getaffinity", facts},
    system_call{"sched_yield", threads},
    system_call{"sendmmsg", sockets},
    system_call{"sendmsg", sockets},
    system_call{"set_robust_list", threads},
    system_call{"setsockopt", sockets},
    system_call{"shutdown", sockets},
    system_call{"statx", files},
    system_call{"sysinfo", facts},
    system_call{"tgkill", "the end of this process when it aborts"},
    system_call{"timerfd_create", event_loop},
    system_call{"timerfd_settime", event_loop},
    system_call{"unlink", files},
    system_call{"unlinkat", files},
    system_call{"waitid", descriptors},
    system_call{"write", output},
};

class filter {
 public:
  explicit filter(std::uint32_t otherwise) : context_(::seccomp_init(otherwise)) {
    if (!context_) {
      base::throw_errno(ENOMEM, operation, {}, "seccomp_init");
    }
  }
  /// Calls that this architecture lacks are left out.
  void add(std::uint32_t action,
           std::string_view name,
           const std::vector<scmp_arg_cmp>& arguments = {}) {
    const int number = ::seccomp_syscall_resolve_name(std::string(name).c_str());
    if (number == __NR_SCMP_ERROR || number < 0) {
      return;
    }
    check(::seccomp_rule_add_array(
        context_.get(), action, number, static_cast<unsigned>(arguments.size()), arguments.data()));
  }
  /// `logged`: the audit log has a line for each call that this filter refuses.
  void load(bool logged) {
    check(::seccomp_attr_set(context_.get(), SCMP_FLTATR_CTL_LOG, logged ? 1 : 0));
    check(::seccomp_load(context_.get()));
  }

 private:
  static void check(int result) {
    if (result < 0) {
      base::throw_errno(-result, operation, {}, "seccomp");
    }
  }
  struct releaser {
    void operator()(void* context) const noexcept { ::seccomp_release(context); }
  };
  std::unique_ptr<void, releaser> context_;
};

}  // namespace

std::span<const system_call> needed_system_calls() {
  return needed;
}

void limit_system_calls(forbidden_call call) {
  if (call == forbidden_call::allow) {
    return;
  }
  filter rules(call == forbidden_call::kill ? SCMP_ACT_KILL_PROCESS : SCMP_ACT_ERRNO(EPERM));
  for (const system_call& each : needed) {
    rules.add(SCMP_ACT_ALLOW, each.name);
  }
  rules.add(SCMP_ACT_ALLOW, "socket", {{0, SCMP_CMP_EQ, AF_UNIX, 0}});
  rules.add(SCMP_ACT_ALLOW, "socketpair", {{0, SCMP_CMP_EQ, AF_UNIX, 0}});
  for (const char* const each : {"mmap", "mprotect"}) {
    rules.add(SCMP_ACT_ALLOW, each, {{2, SCMP_CMP_MASKED_EQ, PROT_EXEC, 0}});
  }
  // Threads, and no processes. The flags of clone3 are in memory, which a filter cannot read: the C
  // library then uses clone. It tries clone3 for each thread, so a filter of its own refuses that
  // call, without a line in the audit log. The kernel takes the strictest answer of all filters.
  filter quiet(SCMP_ACT_ALLOW);
  quiet.add(SCMP_ACT_ERRNO(ENOSYS), "clone3");
  rules.add(SCMP_ACT_ALLOW, "clone3");
  rules.add(SCMP_ACT_ALLOW, "clone", {{0, SCMP_CMP_MASKED_EQ, CLONE_THREAD, CLONE_THREAD}});
  quiet.load(false);
  rules.load(true);
}

}  // namespace gpushm::app
