// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/demo/isolation.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <grp.h>
#include <linux/capability.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <filesystem>
#include <initializer_list>
#include <sstream>

#include "base/files/file.hpp"
#include "base/files/syscall.hpp"
#include "base/files/unique_fd.hpp"

namespace gpushm::cli {

namespace {

constexpr std::string_view operation = "isolate process";
constexpr int namespaces = CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWNET | CLONE_NEWUTS | CLONE_NEWNS;
constexpr std::string_view remedy =
    "run as root, or where user namespaces are allowed (sysctl user.max_user_namespaces, "
    "kernel.apparmor_restrict_unprivileged_userns; inside a container its seccomp profile must "
    "allow unshare and mount); or omit --isolated";

[[noreturn]] void denied(std::string_view call, int number) {
  throw error(errc::permission_denied,
              operation,
              {},
              fmt::format("{}: {}", call, base::errno_text(number)),
              remedy);
}

void write_map(const std::string& path, const std::string& text) {
  const base::unique_fd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!file || ::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    denied("cannot write " + path, errno);
  }
}

bool has_capabilities(std::initializer_list<int> all_needed) {
  const std::string text = effective_capabilities();
  std::uint64_t capabilities = 0;
  std::from_chars(text.data(), text.data() + text.size(), capabilities, 16);
  return std::all_of(all_needed.begin(), all_needed.end(), [&](int needed) {
    return (capabilities >> static_cast<unsigned>(needed) & 1U) != 0;
  });
}

// Whether a line "INSIDE OUTSIDE COUNT" of the map file `path` contains `id` in its inside range.
bool is_mapped(const std::string& path, std::uint64_t id) {
  std::istringstream lines(base::read_small_file(path).value_or(""));
  std::uint64_t inside = 0;
  std::uint64_t outside = 0;
  std::uint64_t count = 0;
  while (lines >> inside >> outside >> count) {
    if (id >= inside && id - inside < count) {
      return true;
    }
  }
  return false;
}

// Creates the namespaces, inside a new user namespace unless `direct`.
void create_namespaces(uid_t uid, bool direct) {
  const uid_t outer_uid = ::geteuid();
  const gid_t outer_gid = ::getegid();
  if (direct) {
    if (::unshare(namespaces) != 0) {
      denied("cannot create pid, ipc, network, uts and mount namespaces", errno);
    }
    return;
  }
  if (::unshare(namespaces | CLONE_NEWUSER) != 0) {
    denied("neither privileged nor allowed to create a user namespace", errno);
  }
  write_map("/proc/self/setgroups", "deny");
  write_map("/proc/self/gid_map", fmt::format("{} {} 1", uid, outer_gid));
  write_map("/proc/self/uid_map", fmt::format("{} {} 1", uid, outer_uid));
}

void mount_proc() {
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
    denied("cannot make mounts private", errno);
  }
  if (::mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) != 0) {
    denied("cannot mount /proc (a container that masks parts of /proc forbids it)", errno);
  }
}

void drop_privileges(uid_t uid, bool direct) {
  if (direct) {
    for (int capability = 0; ::prctl(PR_CAPBSET_READ, capability) >= 0; ++capability) {
      base::checked(operation, {}, "prctl(PR_CAPBSET_DROP)", [&] {
        return ::prctl(PR_CAPBSET_DROP, capability);
      });
    }
    const gid_t gid = uid;
    base::checked(operation, {}, "setgroups", [] { return ::setgroups(0, nullptr); });
    base::checked(operation, {}, "setresgid", [&] { return ::setresgid(gid, gid, gid); });
    base::checked(operation, {}, "setresuid", [&] { return ::setresuid(uid, uid, uid); });
  }
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, 2> none{};
  base::checked(operation, {}, "capset", [&] {
    return static_cast<int>(::syscall(SYS_capset, &header, none.data()));
  });
  base::checked(operation, {}, "prctl(PR_SET_NO_NEW_PRIVS)", [] {
    return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  });
}

// Waits for `child` and terminates this process in the same way.
[[noreturn]] void exit_as(pid_t child) {
  int status = 0;
  base::retry([&] { return ::waitpid(child, &status, 0); });
  if (WIFSIGNALED(status)) {
    ::signal(WTERMSIG(status), SIG_DFL);
    ::raise(WTERMSIG(status));
  }
  ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

}  // namespace

void isolate(std::optional<uid_t> uid,
             const std::string& hostname,
             const std::function<void(pid_t)>& started) {
  const bool direct = uid ? can_isolate_directly(*uid) : has_capabilities({CAP_SYS_ADMIN});
  create_namespaces(uid.value_or(::geteuid()), direct);
  std::array<int, 2> gate{};
  base::checked(operation, {}, "pipe2", [&] { return ::pipe2(gate.data(), O_CLOEXEC); });
  base::unique_fd gate_read(gate[0]);
  base::unique_fd gate_write(gate[1]);
  const pid_t child = base::checked(operation, {}, "fork", [] { return ::fork(); });
  if (child != 0) {
    started(child);
    gate_write.reset();
    exit_as(child);
  }
  gate_write.reset();
  // Waits until `started` has returned, so that it reports before this process does.
  char unused = 0;
  base::retry([&] { return ::read(gate_read.get(), &unused, 1); });
  mount_proc();
  base::checked(operation, {}, "sethostname", [&] {
    return ::sethostname(hostname.data(), hostname.size());
  });
  if (uid) {
    drop_privileges(*uid, direct);
  }
  // After the change of user, which clears it. If the parent has already died, this process reads
  // the end of its input.
  base::checked(
      operation, {}, "prctl(PR_SET_PDEATHSIG)", [] { return ::prctl(PR_SET_PDEATHSIG, SIGKILL); });
}

bool can_isolate_directly(uid_t uid) {
  if (!has_capabilities({CAP_SYS_ADMIN, CAP_SETUID, CAP_SETGID, CAP_SETPCAP, CAP_CHOWN})) {
    return false;
  }
  // Inside a user namespace, as in a rootless container, most uids do not exist.
  return is_mapped("/proc/self/uid_map", uid) && is_mapped("/proc/self/gid_map", uid) &&
         !base::read_small_file("/proc/self/setgroups").value_or("").starts_with("deny");
}

std::string namespace_text(std::string_view name) {
  std::error_code failed;
  return std::filesystem::read_symlink(fmt::format("/proc/self/ns/{}", name), failed).string();
}

std::string effective_capabilities() {
  const std::string status = base::read_small_file("/proc/self/status").value_or("");
  constexpr std::string_view key = "\nCapEff:\t";
  const std::size_t start = status.find(key);
  if (start == std::string::npos) {
    return {};
  }
  const std::size_t end = status.find('\n', start + key.size());
  return status.substr(start + key.size(), end - start - key.size());
}

}  // namespace gpushm::cli
