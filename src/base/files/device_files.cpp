// SPDX-License-Identifier: Apache-2.0
#include "base/files/device_files.hpp"

#include <fcntl.h>
#include <linux/kcmp.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/files/file.hpp"
#include "base/files/unique_fd.hpp"

namespace gpushm::base {

namespace {

/// Documentation/admin-guide/devices.txt of Linux: NVIDIA's GPUs and nvidiactl. The majors of
/// nvidia-uvm and nvidia-caps are assigned when the modules are loaded, so these devices are
/// recognised by name.
constexpr unsigned nvidia_major = 195;
constexpr std::string_view driver_name = "/nvidia";
/// The kernel's struct linux_dirent64 (getdents64(2)): inode, offset, length, type, name.
constexpr std::size_t length_offset = 16;
constexpr std::size_t name_offset = 19;

/// Calls `visit` with each name in a directory. Async-signal-safe if `visit` is, and throws what
/// `visit` throws. Returns false if the directory cannot be read.
template <typename Visit>
bool for_each_name(int directory, Visit&& visit) {
  alignas(std::uint64_t) std::array<char, 4096> buffer{};
  for (;;) {
    const auto size = ::syscall(SYS_getdents64, directory, buffer.data(), buffer.size());
    if (size <= 0) {
      return size == 0;
    }
    for (std::size_t at = 0; at < static_cast<std::size_t>(size);) {
      std::uint16_t length = 0;
      std::memcpy(&length, &buffer[at + length_offset], sizeof length);
      visit(&buffer[at + name_offset]);
      at += length;
    }
  }
}

std::optional<int> number_in(std::string_view text) noexcept {
  int number = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  return failure == std::errc() && end == text.data() + text.size() ? std::optional(number)
                                                                    : std::nullopt;
}

/// Whether `entry` of an fd directory of /proc leads to a device node of the driver. Does not
/// contact a server: stat of a FUSE file blocks for as long as its server does not answer.
bool is_driver_node(int fd_directory, const char* entry) noexcept {
  struct statx info {};
  if (::statx(fd_directory, entry, AT_STATX_DONT_SYNC, STATX_TYPE, &info) != 0 ||
      !S_ISCHR(info.stx_mode)) {
    return false;
  }
  if (info.stx_rdev_major == nvidia_major) {
    return true;
  }
  std::array<char, 256> target{};
  const auto size = ::readlinkat(fd_directory, entry, target.data(), target.size());
  return size > 0 &&
         std::string_view(target.data(), static_cast<std::size_t>(size)).find(driver_name) !=
             std::string_view::npos;
}

bool is_own_driver_file(int fd_directory, const char* entry, int fd) noexcept {
  const int flags = ::fcntl(fd, F_GETFD);
  return flags != -1 && (flags & FD_CLOEXEC) != 0 && is_driver_node(fd_directory, entry);
}

/// The descriptors of another process that are driver files; nullopt if it cannot be inspected.
std::optional<std::vector<int>> driver_files_of(const std::string& process) {
  const unique_fd directory(
      ::open(("/proc/" + process + "/fd").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory) {
    return std::nullopt;
  }
  std::vector<int> numbers;
  const bool whole = for_each_name(directory.get(), [&](const char* name) {
    if (const auto fd = number_in(name); fd && is_driver_node(directory.get(), name)) {
      numbers.push_back(*fd);
    }
  });
  return whole ? std::optional(std::move(numbers)) : std::nullopt;
}

/// Fields of /proc/<pid>/stat after the name, which may contain anything; the first is field 3 of
/// proc_pid_stat(5).
std::vector<std::string> stat_fields(const std::string& process) {
  std::vector<std::string> fields;
  const auto text = read_small_file("/proc/" + process + "/stat");
  const auto name_end = text ? text->rfind(") ") : std::string::npos;
  if (name_end != std::string::npos) {
    std::istringstream words(text->substr(name_end + 2));
    for (std::string word; words >> word;) {
      fields.push_back(std::move(word));
    }
  }
  return fields;
}

/// Children by parent, of all processes visible in this PID namespace.
std::optional<std::multimap<int, int>> children_by_parent() {
  const unique_fd directory(::open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory) {
    return std::nullopt;
  }
  std::multimap<int, int> result;
  const bool whole = for_each_name(directory.get(), [&](const char* name) {
    const auto pid = number_in(name);
    if (!pid) {
      return;
    }
    constexpr std::size_t parent_field = 1;
    const auto fields = stat_fields(name);
    if (const auto parent =
            fields.size() > parent_field ? number_in(fields[parent_field]) : std::nullopt) {
      result.emplace(*parent, *pid);
    }
  });
  return whole ? std::optional(std::move(result)) : std::nullopt;
}

/// Whether one of `others` is the same open file as one of `own`; nullopt if the kernel does not
/// report it.
std::optional<bool> share_one(pid_t other,
                              const std::vector<int>& others,
                              const std::vector<int>& own) noexcept {
  const pid_t self = ::getpid();
  for (const int fd : others) {
    for (const int mine : own) {
      const auto order = ::syscall(SYS_kcmp, self, other, KCMP_FILE, mine, fd);
      if (order == 0) {
        return true;
      }
      if (order == -1 && errno != EBADF && errno != ESRCH) {
        return std::nullopt;
      }
    }
  }
  return false;
}

/// Whether a descendant has executed a program since it was forked, which closes the driver's
/// files: its stack then begins at another address. False if the kernel does not show that address.
bool has_executed(pid_t other) {
  constexpr std::size_t startstack_field = 25;
  const auto others = stat_fields(std::to_string(other));
  const auto own = stat_fields("self");
  return others.size() > startstack_field && own.size() > startstack_field &&
         others[startstack_field] != "0" && own[startstack_field] != "0" &&
         others[startstack_field] != own[startstack_field];
}

bool may_share(pid_t other, const std::vector<int>& own) {
  const auto others = driver_files_of(std::to_string(other));
  if (!others) {
    return ::access(("/proc/" + std::to_string(other)).c_str(), F_OK) == 0;  // else it has exited
  }
  // Seccomp filters of containers refuse kcmp.
  return share_one(other, *others, own).value_or(!has_executed(other));
}

/// Whether this process may have children, also those that end without a signal. Linux before 4.7
/// does not report this (EINVAL).
bool may_have_children() noexcept {
  siginfo_t unused{};
  return ::waitid(P_ALL, 0, &unused, WEXITED | WNOHANG | WNOWAIT | __WALL) == 0 || errno != ECHILD;
}

bool any_descendant_may_share(const std::vector<int>& own) {
  const auto children = children_by_parent();
  if (!children) {
    return true;
  }
  std::vector<int> parents{::getpid()};
  while (!parents.empty()) {
    const int parent = parents.back();
    parents.pop_back();
    const auto [first, last] = children->equal_range(parent);
    for (auto at = first; at != last; ++at) {
      if (may_share(at->second, own)) {
        return true;
      }
      parents.push_back(at->second);
    }
  }
  return false;
}

/// Without /proc: nvidiactl is open in every process that uses the driver.
bool has_driver_open() noexcept {
  rlimit limit{};
  constexpr rlim_t most = 65'536;
  const rlim_t end =
      ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? std::min(limit.rlim_cur, most) : most;
  for (int fd = 0; static_cast<rlim_t>(fd) < end; ++fd) {
    struct statx info {};
    if (::statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &info) == 0 &&
        S_ISCHR(info.stx_mode) && info.stx_rdev_major == nvidia_major) {
      return true;
    }
  }
  return false;
}

}  // namespace

bool replace_driver_files(int null) noexcept {
  const int directory = ::open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory == -1) {
    return !has_driver_open();
  }
  int opened = -1;
  bool replaced_all = true;
  const bool whole = for_each_name(directory, [&](const char* name) {
    const auto fd = number_in(name);
    if (!fd || *fd == directory || !is_own_driver_file(directory, name, *fd)) {
      return;
    }
    if (null == -1 && opened == -1) {
      opened = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    }
    replaced_all = ::dup3(null == -1 ? opened : null, *fd, O_CLOEXEC) == *fd && replaced_all;
  });
  if (opened != -1) {
    ::close(opened);
  }
  ::close(directory);
  return replaced_all && whole;
}

bool descendants_may_have_driver_files() noexcept {
  if (!may_have_children()) {
    return false;
  }
  try {
    const auto own = driver_files_of("self");
    return !own || (!own->empty() && any_descendant_may_share(*own));
  } catch (const std::exception&) {
    return true;
  }
}

}  // namespace gpushm::base
