// SPDX-License-Identifier: Apache-2.0
#include "containers/hook/root.hpp"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include "base/files/file.hpp"
#include "base/files/syscall.hpp"
#include "base/text/text.hpp"

namespace gpushm::hook {

namespace {

constexpr std::string_view root_operation = "change the container's root";
constexpr mode_t directory_mode = 0755;
constexpr mode_t file_mode = 0644;

// A single openat2 call: the kernel resolves links with `root` as "/", so no process can replace a
// directory with a link between two steps.
int open_in_root(int root, const std::string& path, int flags, std::uint64_t resolve) {
  open_how how{};
  how.flags = static_cast<unsigned int>(flags | O_CLOEXEC);
  how.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS | resolve;
  // EAGAIN: a concurrent rename prevented a safe resolution.
  for (int attempt = 0; attempt < 100; ++attempt) {
    const auto fd = ::syscall(SYS_openat2, root, path.c_str(), &how, sizeof how);
    if (fd >= 0 || (errno != EAGAIN && errno != EINTR)) {
      return static_cast<int>(fd);
    }
  }
  return -1;
}

std::string text_of(std::string_view path) {
  return path.empty() ? "." : std::string(path);
}

}  // namespace

container_root::container_root(const std::string& path)
    : path_(path), root_(base::checked("open the container's root", path, "open", [&] {
        return ::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
      })) {
  if (!open("/", O_PATH | O_DIRECTORY)) {
    throw error(errc::system_error,
                "open the container's root",
                path,
                std::string("openat2: ").append(base::errno_text(errno)),
                "hooks need Linux 5.6 or later, and openat2 permitted by seccomp");
  }
}

base::unique_fd container_root::open(std::string_view path, int flags) const {
  constexpr std::string_view devices = "/dev";
  const std::string_view rest = path.substr(std::min(path.size(), devices.size()));
  if (!path.starts_with(devices) || !(rest.empty() || rest.front() == '/')) {
    return base::unique_fd(open_in_root(root_.get(), text_of(path), flags, RESOLVE_NO_XDEV));
  }
  const base::unique_fd mounted = open_without_links(devices, O_PATH | O_DIRECTORY);
  return mounted
             ? base::unique_fd(open_in_root(mounted.get(), text_of(rest), flags, RESOLVE_NO_XDEV))
             : base::unique_fd();
}

base::unique_fd container_root::open_without_links(std::string_view path, int flags) const {
  return base::unique_fd(open_in_root(root_.get(), text_of(path), flags, RESOLVE_NO_SYMLINKS));
}

bool container_root::read_only() const noexcept {
  struct statvfs about {};
  return ::fstatvfs(root_.get(), &about) == 0 && (about.f_flag & ST_RDONLY) != 0;
}

base::unique_fd container_root::make_directory(std::string_view path) const {
  base::unique_fd there = open(path, O_PATH | O_DIRECTORY);
  if (there) {
    return there;
  }
  if (errno != ENOENT || path.empty() || path == "/") {
    base::throw_errno(errno, root_operation, path, "open");
  }
  const base::unique_fd parent = make_directory(base::directory_of(path));
  const std::string name(base::name_of(path));
  base::checked(root_operation,
                path,
                "mkdir",
                [&] { return ::mkdirat(parent.get(), name.c_str(), directory_mode); },
                {EEXIST});
  there = open(path, O_PATH | O_DIRECTORY);
  if (!there) {
    base::throw_errno(errno, root_operation, path, "open");
  }
  return there;
}

std::optional<std::string> container_root::read(std::string_view path,
                                                std::size_t limit_bytes) const {
  // Checked before it is opened: opening a device or a pipe of the image has side effects.
  const base::unique_fd seen = open(path, O_PATH);
  struct stat about {};
  if (!seen || ::fstat(seen.get(), &about) != 0 || !S_ISREG(about.st_mode)) {
    return std::nullopt;
  }
  const std::string again = std::string("/proc/self/fd/").append(std::to_string(seen.get()));
  const base::unique_fd file(::open(again.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!file) {
    return std::nullopt;
  }
  return read_open_file(file.get(), limit_bytes);
}

void container_root::write(std::string_view directory,
                           const std::string& name,
                           std::string_view text) const {
  const base::unique_fd place = make_directory(directory);
  const std::string temporary = temporary_name(name);
  const base::unique_fd file(base::checked(root_operation, name, "open", [&] {
    return ::openat(place.get(),
                    temporary.c_str(),
                    O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                    file_mode);
  }));
  try {
    write_all(file.get(), text, root_operation, name);
    // The engine's umask applies.
    base::checked(root_operation, name, "fchmod", [&] { return ::fchmod(file.get(), file_mode); });
    base::checked(root_operation, name, "rename", [&] {
      return ::renameat(place.get(), temporary.c_str(), place.get(), name.c_str());
    });
  } catch (const error&) {
    static_cast<void>(::unlinkat(place.get(), temporary.c_str(), 0));
    throw;
  }
}

std::optional<std::string> read_open_file(int fd, std::size_t limit_bytes) {
  std::string text(limit_bytes, '\0');
  std::size_t used = 0;
  while (used < text.size()) {
    const auto got =
        base::retry([&] { return ::read(fd, text.data() + used, text.size() - used); });
    if (got < 0) {
      return std::nullopt;
    }
    if (got == 0) {
      break;
    }
    used += static_cast<std::size_t>(got);
  }
  text.resize(used);
  return text;
}

void write_all(int fd, std::string_view text, std::string_view operation, std::string_view object) {
  while (!text.empty()) {
    const auto wrote = base::checked(
        operation, object, "write", [&] { return ::write(fd, text.data(), text.size()); });
    text.remove_prefix(static_cast<std::size_t>(wrote));
  }
}

std::string temporary_name(std::string_view name) {
  std::array<std::uint8_t, 8> bytes{};
  base::random_bytes(bytes);
  std::string text = std::string(".").append(name).append("-");
  for (const std::uint8_t byte : bytes) {
    std::array<char, 3> digits{};
    static_cast<void>(std::snprintf(digits.data(), digits.size(), "%02x", unsigned{byte}));
    text.append(digits.data());
  }
  return text;
}

}  // namespace gpushm::hook
