// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/file.hpp"
#include "base/syscall.hpp"
#include "gpushm/error.hpp"
#include "hook/hook.hpp"

namespace gpushm::hook {

namespace {

constexpr std::string_view operation = "stop the driver from creating device nodes";
constexpr const char* directory = "/proc/driver/nvidia";
constexpr const char* params = "/proc/driver/nvidia/params";
constexpr unsigned long restricted = MS_NOSUID | MS_NODEV | MS_NOEXEC;

std::string descriptor_path(const base::unique_fd& fd) {
  return std::string("/proc/self/fd/").append(std::to_string(fd.get()));
}

// Empty when the line is missing or already has the value 0.
std::optional<std::string> without_modification(const std::string& text) {
  const std::string wanted = "ModifyDeviceFiles: 1\n";
  const auto at = text.find(wanted);
  if (at == std::string::npos || (at > 0 && text[at - 1] != '\n')) {
    return std::nullopt;
  }
  std::string changed = text;
  changed[at + wanted.size() - 2] = '0';
  return changed;
}

base::unique_fd open_in_root(const container_root& root, const char* path, int flags) {
  base::unique_fd opened = root.open_without_links(path, flags);
  if (!opened) {
    base::throw_errno(errno, operation, path, "open");
  }
  return opened;
}

/// A temporary tmpfs over a directory of the container: a bind mount needs a source in this mount
/// namespace, and no file may remain in the image.
class temporary_tmpfs {
 public:
  explicit temporary_tmpfs(const container_root& root) {
    const base::unique_fd below = open_in_root(root, directory, O_PATH | O_DIRECTORY);
    base::checked(operation, directory, "mount", [&] {
      return ::mount(
          "gpushm", descriptor_path(below).c_str(), "tmpfs", restricted, "size=1m,mode=0755");
    });
    top_ = root.open_without_links(directory, O_PATH | O_DIRECTORY);
    struct statfs about {};
    if (!top_ || ::fstatfs(top_.get(), &about) != 0 || about.f_type != TMPFS_MAGIC) {
      throw error(errc::system_error, operation, directory, "the mount is not at its target");
    }
  }
  temporary_tmpfs(const temporary_tmpfs&) = delete;
  temporary_tmpfs& operator=(const temporary_tmpfs&) = delete;
  ~temporary_tmpfs() {
    if (top_) {
      static_cast<void>(::umount2(descriptor_path(top_).c_str(), MNT_DETACH));
    }
  }
  [[nodiscard]] base::unique_fd make_file(std::string_view text) const {
    base::unique_fd file(base::checked(operation, params, "open", [&] {
      return ::openat(top_.get(), "params", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444);
    }));
    write_all(file.get(), text, operation, params);
    base::checked(operation, params, "fchmod", [&] { return ::fchmod(file.get(), 0444); });
    return file;
  }

 private:
  base::unique_fd top_;
};

}  // namespace

void disable_device_node_modification(const container_root& root, const hook_options& options) {
  const std::string asked = options.last("params");
  const auto text = base::read_small_file(asked.empty() ? params : asked);
  const auto changed = text ? without_modification(*text) : std::nullopt;
  if (!changed) {
    return;
  }
  // Opened before the tmpfs covers it.
  const base::unique_fd target = root.open_without_links(params, O_PATH);
  if (!target) {
    // If the engine hides the file, the driver cannot read it.
    if (errno == ENOENT) {
      return;
    }
    base::throw_errno(errno, operation, params, "open");
  }
  {
    const temporary_tmpfs scratch(root);
    const base::unique_fd file = scratch.make_file(*changed);
    base::checked(operation, params, "mount", [&] {
      return ::mount(descriptor_path(file).c_str(),
                     descriptor_path(target).c_str(),
                     nullptr,
                     MS_BIND,
                     nullptr);
    });
  }
  // A bind mount ignores other flags; a remount sets them.
  const base::unique_fd bound = open_in_root(root, params, O_PATH);
  base::checked(operation, params, "mount", [&] {
    return ::mount(nullptr,
                   descriptor_path(bound).c_str(),
                   nullptr,
                   MS_BIND | MS_REMOUNT | MS_RDONLY | restricted,
                   nullptr);
  });
}

}  // namespace gpushm::hook
