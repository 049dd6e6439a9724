// SPDX-License-Identifier: Apache-2.0
#include "cdi/hook_root.hpp"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <cstdio>
#include <vector>

#include "base/file.hpp"
#include "base/syscall.hpp"
#include "discover/root_view.hpp"

namespace gpushm::cli {

namespace {

constexpr const char* operation = "change the container's root";
constexpr int max_links = 40;  // as the kernel
constexpr mode_t directory_mode = 0755;
constexpr mode_t file_mode = 0644;

int open_in_root(int root, const std::string& path, int flags, mode_t mode) {
  open_how how{};
  how.flags = static_cast<unsigned int>(flags | O_CLOEXEC);
  how.mode = (flags & O_CREAT) != 0 ? mode : 0;
  how.resolve = RESOLVE_IN_ROOT;
  // EAGAIN: something was renamed meanwhile, and the kernel could not be sure.
  for (int attempt = 0; attempt < 100; ++attempt) {
    const auto fd = ::syscall(SYS_openat2, root, path.c_str(), &how, sizeof how);
    if (fd >= 0 || (errno != EAGAIN && errno != EINTR)) {
      return static_cast<int>(fd);
    }
  }
  return -1;
}

bool is_link(int fd) {
  struct stat about {};
  return ::fstat(fd, &about) == 0 && S_ISLNK(about.st_mode);
}

std::optional<std::string> target_of(int link) {
  std::array<char, PATH_MAX> target{};
  const auto length = ::readlinkat(link, "", target.data(), target.size());
  if (length <= 0 || static_cast<std::size_t>(length) >= target.size()) {
    return std::nullopt;
  }
  return std::string(target.data(), static_cast<std::size_t>(length));
}

base::unique_fd failed(int number) {
  errno = number;
  return {};
}

}  // namespace

container_root::container_root(const std::string& path, resolution how)
    : path_(path),
      root_(base::checked("open the container's root",
                          path,
                          "open",
                          [&] { return ::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC); })),
      how_(how) {}

base::unique_fd container_root::open(std::string_view path, int flags, mode_t mode) const {
  if (how_ == resolution::best) {
    const std::string text = path.empty() ? "." : std::string(path);
    const int fd = open_in_root(root_.get(), text, flags, mode);
    // Too old a kernel, or a seccomp profile that does not know the call.
    if (fd >= 0 || (errno != ENOSYS && errno != EPERM)) {
      return base::unique_fd(fd);
    }
  }
  return open_by_parts(path, flags, mode);
}

base::unique_fd container_root::open_by_parts(std::string_view path, int flags, mode_t mode) const {
  // The directories on the way, so that ".." never asks the file system, which could answer with
  // one outside.
  std::vector<base::unique_fd> way;
  const auto here = [&] { return way.empty() ? root_.get() : way.back().get(); };
  std::vector<std::string> parts;
  discover::push_parts(parts, path);
  int links = 0;
  while (!parts.empty()) {
    const std::string part = std::move(parts.back());
    parts.pop_back();
    const bool dots = part == "." || part == "..";
    if (part == ".." && !way.empty()) {
      way.pop_back();
    }
    if (dots) {
      continue;
    }
    base::unique_fd next(::openat(here(), part.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    if (next && is_link(next.get()) && !(parts.empty() && (flags & O_NOFOLLOW) != 0)) {
      const auto target = target_of(next.get());
      if (!target || ++links > max_links) {
        return failed(ELOOP);
      }
      if (target->front() == '/') {
        way.clear();
      }
      discover::push_parts(parts, *target);
      continue;
    }
    if (parts.empty()) {
      return base::unique_fd(::openat(here(), part.c_str(), flags | O_NOFOLLOW | O_CLOEXEC, mode));
    }
    if (!next) {
      return {};
    }
    way.push_back(std::move(next));
  }
  return base::unique_fd(::openat(here(), ".", flags | O_CLOEXEC, mode));
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
    base::throw_errno(errno, operation, path, "open");
  }
  const base::unique_fd parent = make_directory(discover::directory_of(path));
  const std::string name(discover::name_of(path));
  base::checked(operation,
                path,
                "mkdir",
                [&] { return ::mkdirat(parent.get(), name.c_str(), directory_mode); },
                {EEXIST});
  there = open(path, O_PATH | O_DIRECTORY);
  if (!there) {
    base::throw_errno(errno, operation, path, "open");
  }
  return there;
}

std::optional<std::string> container_root::read(std::string_view path,
                                                std::size_t limit_bytes) const {
  const base::unique_fd file = open(path, O_RDONLY | O_NONBLOCK);
  struct stat about {};
  if (!file || ::fstat(file.get(), &about) != 0 || !S_ISREG(about.st_mode)) {
    return std::nullopt;
  }
  return base::read_small_file(std::string("/proc/self/fd/").append(std::to_string(file.get())),
                               limit_bytes);
}

void container_root::write(std::string_view directory,
                           const std::string& name,
                           std::string_view text) const {
  const base::unique_fd place = make_directory(directory);
  const std::string temporary = temporary_name(name);
  const base::unique_fd file(base::checked(operation, name, "open", [&] {
    return ::openat(place.get(),
                    temporary.c_str(),
                    O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                    file_mode);
  }));
  try {
    while (!text.empty()) {
      const auto wrote = base::checked(
          operation, name, "write", [&] { return ::write(file.get(), text.data(), text.size()); });
      text.remove_prefix(static_cast<std::size_t>(wrote));
    }
    // The creation mask is the engine's.
    base::checked(operation, name, "fchmod", [&] { return ::fchmod(file.get(), file_mode); });
    base::checked(operation, name, "rename", [&] {
      return ::renameat(place.get(), temporary.c_str(), place.get(), name.c_str());
    });
  } catch (const error&) {
    static_cast<void>(::unlinkat(place.get(), temporary.c_str(), 0));
    throw;
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

}  // namespace gpushm::cli
