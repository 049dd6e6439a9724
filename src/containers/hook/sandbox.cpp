// SPDX-License-Identifier: Apache-2.0
#include "containers/hook/sandbox.hpp"

#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <set>

#include "base/files/syscall.hpp"
#include "base/process/signals.hpp"
#include "base/text/text.hpp"
#include "gpushm/error.hpp"

namespace gpushm::hook {

namespace {

constexpr std::string_view operation = "confine ldconfig";

constexpr std::uint64_t scratch_bytes = std::uint64_t{64} << 20U;
constexpr std::uint64_t address_bytes = std::uint64_t{8}
                                        << 30U;  // ldconfig maps one library at a time
constexpr std::uint64_t memory_bytes = std::uint64_t{512} << 20U;
constexpr std::uint64_t max_descriptors = 64;
constexpr std::size_t max_output_bytes = 4096;
constexpr std::size_t max_mounts_bytes = std::size_t{64} << 20U;
constexpr int exit_not_confined = 126;

[[noreturn]] void throw_step(const char* call, int number) {
  throw error(base::errc_of_errno(number),
              operation,
              {},
              std::string(call).append(": ").append(base::errno_text(number)),
              number == ENOSYS ? "it needs Linux 5.12 or later"
                               : "it needs CAP_SYS_ADMIN in the container's user namespace, and "
                                 "mounts permitted by seccomp");
}

int need(int result, const char* call) {
  if (result == -1) {
    throw_step(call, errno);
  }
  return result;
}

/// A copy of the mounts at `root` and below, made read-only before it is used.
base::unique_fd copy_of_mounts(int root) {
  base::unique_fd tree(need(
      ::open_tree(root, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH | AT_RECURSIVE),
      "open_tree"));
  mount_attr attributes{};
  attributes.attr_set =
      MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC;
  attributes.propagation = MS_PRIVATE;
  need(
      ::mount_setattr(tree.get(), "", AT_EMPTY_PATH | AT_RECURSIVE, &attributes, sizeof attributes),
      "mount_setattr");
  return tree;
}

base::unique_fd new_tmpfs() {
  const base::unique_fd context(need(::fsopen("tmpfs", FSOPEN_CLOEXEC), "fsopen"));
  const std::string size = std::to_string(scratch_bytes);
  for (const auto& [key, value] :
       {std::pair{"size", size.c_str()}, std::pair{"nr_inodes", "16"}, std::pair{"mode", "0700"}}) {
    need(::fsconfig(context.get(), FSCONFIG_SET_STRING, key, value, 0), "fsconfig");
  }
  need(::fsconfig(context.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0), "fsconfig");
  return base::unique_fd(need(
      ::fsmount(
          context.get(), FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC),
      "fsmount"));
}

std::uint64_t mount_id_of(int fd) {
  struct statx about {};
  need(::statx(fd, "", AT_EMPTY_PATH, STATX_MNT_ID, &about), "statx");
  if ((about.stx_mask & STATX_MNT_ID) == 0) {
    throw_step("statx", ENOSYS);
  }
  return about.stx_mnt_id;
}

std::string this_process_mounts() {
  const base::unique_fd file(
      need(::open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC), "open /proc/self/mountinfo"));
  std::string text;
  std::array<char, 65'536> block{};
  while (text.size() < max_mounts_bytes) {
    const auto got = base::retry([&] { return ::read(file.get(), block.data(), block.size()); });
    if (got <= 0) {
      need(static_cast<int>(got), "read /proc/self/mountinfo");
      return text;
    }
    text.append(block.data(), static_cast<std::size_t>(got));
  }
  throw_step("read /proc/self/mountinfo", E2BIG);
}

/// Detaches every procfs and sysfs below the mount `top`. No other process can mount here: once the
/// kernel lists none, none can appear.
void detach_kernel_files(std::uint64_t top) {
  constexpr int max_rounds = 64;  // mounts can be stacked
  for (int round = 0; round < max_rounds; ++round) {
    const auto mounts = kernel_file_mounts(this_process_mounts(), top);
    if (mounts.empty()) {
      return;
    }
    bool any = false;
    int number = 0;
    for (const std::string& each : mounts) {
      // A wrong path is safe: this process owns the mount namespace, and the next round checks
      // again.
      if (::umount2(each.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW) == 0) {
        any = true;
      } else {
        number = errno;
      }
    }
    if (!any) {
      // Mounts of another user namespace are locked in place.
      throw_step("umount2 of a procfs or sysfs", number);
    }
  }
  throw_step("umount2 of every procfs and sysfs", ELOOP);
}

void enter(int tree, const std::string& where) {
  // Stops mount propagation in both directions.
  need(::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr), "mount");
  need(::move_mount(tree, "", AT_FDCWD, where.c_str(), MOVE_MOUNT_F_EMPTY_PATH), "move_mount");
  detach_kernel_files(mount_id_of(tree));
  const base::unique_fd old_root(need(::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC), "open"));
  need(::fchdir(tree), "fchdir");
  need(static_cast<int>(::syscall(SYS_pivot_root, ".", ".")), "pivot_root");
  need(::fchdir(old_root.get()), "fchdir");
  need(::umount2(".", MNT_DETACH), "umount2");
  need(::chdir("/"), "chdir");
}

void limit(__rlimit_resource resource, std::uint64_t most) {
  rlimit now{};
  need(::getrlimit(resource, &now), "getrlimit");
  const rlim_t lower = std::min<rlim_t>(now.rlim_max, most);
  const rlimit both{lower, lower};
  need(::setrlimit(resource, &both), "setrlimit");
}

void drop_rights() {
  limit(RLIMIT_CORE, 0);
  limit(RLIMIT_FSIZE, scratch_bytes);
  limit(RLIMIT_AS, address_bytes);
  limit(RLIMIT_DATA, memory_bytes);
  limit(RLIMIT_NOFILE, max_descriptors);
  ::umask(077);
  for (int capability = 0; ::prctl(PR_CAPBSET_READ, capability, 0, 0, 0) >= 0; ++capability) {
    need(::prctl(PR_CAPBSET_DROP, capability, 0, 0, 0), "prctl(PR_CAPBSET_DROP)");
  }
  need(::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "prctl(PR_CAP_AMBIENT)");
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  const std::array<__user_cap_data_struct, 2> none{};
  need(static_cast<int>(::syscall(SYS_capset, &header, none.data())), "capset");
  need(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)");
}

void default_signals() {
  for (int number = 1; number < NSIG; ++number) {
    ::signal(number, SIG_DFL);  // fails for signals that cannot be reset
  }
  sigset_t none;
  ::sigemptyset(&none);
  if (const int number = ::pthread_sigmask(SIG_SETMASK, &none, nullptr); number != 0) {
    throw_step("pthread_sigmask", number);
  }
}

struct program_call {
  int program;
  int tree;
  int scratch;
  int output;
  const std::string& where;
  char* const* arguments;
};

// Runs in the child. The parent reads errors as the end of the program's output.
[[noreturn]] void become(const program_call& call) {
  try {
    need(::prctl(PR_SET_PDEATHSIG, SIGKILL), "prctl(PR_SET_PDEATHSIG)");
    default_signals();
    const base::unique_fd nothing(
        need(::open("/dev/null", O_RDONLY | O_CLOEXEC), "open /dev/null"));
    need(::dup2(nothing.get(), STDIN_FILENO), "dup2");
    need(::dup2(call.output, STDOUT_FILENO), "dup2");
    need(::dup2(call.output, STDERR_FILENO), "dup2");
    // All others are closed on exec, including descriptors that a runtime left open.
    need(::close_range(STDERR_FILENO + 1, ~0U, CLOSE_RANGE_CLOEXEC), "close_range");
    enter(call.tree, call.where);
    need(::fchdir(call.scratch), "fchdir");
    drop_rights();
    const std::array<char*, 1> no_environment{nullptr};
    ::execveat(call.program, "", call.arguments, no_environment.data(), AT_EMPTY_PATH);
    const int number = errno;
    // EACCES: the loader of a dynamic program. ENOENT: the interpreter of a script.
    throw error(errc::system_error,
                operation,
                {},
                std::string("execveat: ").append(base::errno_text(number)),
                "--ldconfig-path must be a static program");
  } catch (const std::exception& failure) {
    const std::string_view text = failure.what();
    static_cast<void>(!::write(STDERR_FILENO, text.data(), text.size()));
  }
  ::_exit(exit_not_confined);
}

int milliseconds_until(std::chrono::steady_clock::time_point until) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1'000'000));
}

bool wait_readable(int fd, std::chrono::steady_clock::time_point until) {
  pollfd what{fd, POLLIN, 0};
  return base::retry([&] { return ::poll(&what, 1, milliseconds_until(until)); }) > 0;
}

/// Keeps the tail of the output up to end of file. False when `until` passes first.
bool read_end(int file, std::string& output, std::chrono::steady_clock::time_point until) {
  std::array<char, 4096> block{};
  while (wait_readable(file, until)) {
    const auto got = base::retry([&] { return ::read(file, block.data(), block.size()); });
    if (got <= 0) {
      return true;
    }
    output.append(block.data(), static_cast<std::size_t>(got));
    if (output.size() > max_output_bytes) {
      output.erase(0, output.size() - max_output_bytes);
    }
    if (std::chrono::steady_clock::now() >= until) {
      return false;
    }
  }
  return false;
}

std::string unescaped(std::string_view text) {
  std::string path;
  for (std::size_t i = 0; i < text.size(); ++i) {
    // "\\040": always three octal digits.
    const auto code = text[i] == '\\' && i + 3 < text.size()
                          ? base::number<unsigned>(text.substr(i + 1, 3), 8)
                          : std::nullopt;
    if (code) {
      path += static_cast<char>(*code);
      i += 3;
    } else {
      path += text[i];
    }
  }
  return path;
}

struct listed_mount {
  std::uint64_t id = 0;
  std::uint64_t parent = 0;
  std::string_view place;
  std::string_view type;
};

// "36 35 98:0 /root /place rw,noatime master:1 - type source options"
std::vector<listed_mount> listed_mounts(std::string_view mountinfo) {
  std::vector<listed_mount> mounts;
  for (const std::string_view line : base::lines_of(mountinfo)) {
    const auto words = base::split(line, " ");
    const auto dash = std::find(words.begin(), words.end(), "-");
    if (words.size() < 6 || dash == words.end() || dash + 1 == words.end()) {
      throw_step("read /proc/self/mountinfo", EBADMSG);
    }
    const auto id = base::number<std::uint64_t>(words[0]);
    const auto parent = base::number<std::uint64_t>(words[1]);
    if (!id || !parent) {
      throw_step("read /proc/self/mountinfo", EBADMSG);
    }
    mounts.push_back({*id, *parent, words[4], *(dash + 1)});
  }
  return mounts;
}

}  // namespace

std::vector<std::string> kernel_file_mounts(std::string_view mountinfo, std::uint64_t top) {
  const std::vector<listed_mount> mounts = listed_mounts(mountinfo);
  std::set<std::uint64_t> below{top};
  for (std::size_t before = 0; before != below.size();) {
    before = below.size();
    for (const listed_mount& each : mounts) {
      if (below.contains(each.parent)) {
        below.insert(each.id);
      }
    }
  }
  std::vector<std::string> places;
  for (const listed_mount& each : mounts) {
    if (below.contains(each.id) && (each.type == "proc" || each.type == "sysfs")) {
      places.push_back(unescaped(each.place));
    }
  }
  return places;
}

root_sandbox::root_sandbox(const container_root& root)
    : where_(root.path()), tree_(copy_of_mounts(root.descriptor())), scratch_(new_tmpfs()) {}

void root_sandbox::put(const std::string& name, std::string_view text) const {
  const base::unique_fd file(
      need(::openat(scratch_.get(), name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600),
           "openat"));
  write_all(file.get(), text, operation, name);
}

root_sandbox::ending root_sandbox::run(int program,
                                       std::vector<std::string> arguments,
                                       std::chrono::milliseconds timeout) const {
  std::vector<char*> words;
  words.reserve(arguments.size() + 1);
  for (std::string& each : arguments) {
    words.push_back(each.data());
  }
  words.push_back(nullptr);
  std::array<int, 2> ends{};
  need(::pipe2(ends.data(), O_CLOEXEC), "pipe2");
  base::unique_fd input(ends[0]);
  base::unique_fd output(ends[1]);
  // The first process of its PID namespace: its children die with it, and it can signal no other
  // process.
  const auto until = std::chrono::steady_clock::now() + timeout;
  const auto pid = static_cast<pid_t>(::syscall(SYS_clone,
                                                SIGCHLD | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC,
                                                nullptr,
                                                nullptr,
                                                nullptr,
                                                0));
  if (need(pid, "clone") == 0) {
    become({program, tree_.get(), scratch_.get(), output.get(), where_, words.data()});
  }
  output.reset();
  ending result;
  const base::unique_fd process(
      need(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)), "pidfd_open"));
  result.ended = read_end(input.get(), result.output, until) && wait_readable(process.get(), until);
  if (!result.ended) {
    base::signal_process(pid, SIGKILL);
    // A file system that hangs can delay even SIGKILL.
    static_cast<void>(
        wait_readable(process.get(), std::chrono::steady_clock::now() + std::chrono::seconds(1)));
  }
  base::retry([&] { return ::waitpid(pid, &result.status, result.ended ? 0 : WNOHANG); });
  return result;
}

std::optional<std::string> root_sandbox::take(const std::string& name,
                                              std::size_t limit_bytes) const {
  const base::unique_fd file(
      ::openat(scratch_.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat about {};
  if (!file || ::fstat(file.get(), &about) != 0 || !S_ISREG(about.st_mode) || about.st_size < 0 ||
      static_cast<std::uint64_t>(about.st_size) > limit_bytes) {
    return std::nullopt;
  }
  return read_open_file(file.get(), static_cast<std::size_t>(about.st_size));
}

}  // namespace gpushm::hook
