// SPDX-License-Identifier: Apache-2.0
#include "containers/hook/temporary_tmpfs.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/files/syscall.hpp"
#include "gpushm/error.hpp"

namespace gpushm::hook {

std::string descriptor_path(const base::unique_fd& fd) {
  return std::string("/proc/self/fd/").append(std::to_string(fd.get()));
}

temporary_tmpfs::temporary_tmpfs(const container_root& root,
                                 const std::string& directory,
                                 std::string_view operation)
    : operation_(operation) {
  const base::unique_fd below = root.open_without_links(directory, O_PATH | O_DIRECTORY);
  if (!below) {
    base::throw_errno(errno, operation, directory, "open");
  }
  base::checked(operation, directory, "mount", [&] {
    return ::mount("gpushm",
                   descriptor_path(below).c_str(),
                   "tmpfs",
                   MS_NOSUID | MS_NODEV | MS_NOEXEC,
                   "size=1m,mode=0755");
  });
  top_ = root.open_without_links(directory, O_PATH | O_DIRECTORY);
  struct statfs about {};
  if (!top_ || ::fstatfs(top_.get(), &about) != 0 || about.f_type != TMPFS_MAGIC) {
    throw error(errc::system_error, operation, directory, "the mount is not at its target");
  }
}

temporary_tmpfs::~temporary_tmpfs() {
  if (top_) {
    static_cast<void>(::umount2(descriptor_path(top_).c_str(), MNT_DETACH));
  }
}

base::unique_fd temporary_tmpfs::make_file(const std::string& name, std::string_view text) const {
  constexpr mode_t mode = 0444;
  base::unique_fd file(base::checked(operation_, name, "open", [&] {
    return ::openat(top_.get(), name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  }));
  write_all(file.get(), text, operation_, name);
  base::checked(operation_, name, "fchmod", [&] { return ::fchmod(file.get(), mode); });
  return file;
}

}  // namespace gpushm::hook
