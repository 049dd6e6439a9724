// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/mount.h>

#include "base/files/file.hpp"
#include "base/files/syscall.hpp"
#include "containers/hook/hook.hpp"
#include "containers/hook/temporary_tmpfs.hpp"
#include "gpushm/error.hpp"

namespace gpushm::hook {

namespace {

constexpr std::string_view operation = "stop the driver from creating device nodes";
constexpr const char* directory = "/proc/driver/nvidia";
constexpr const char* params = "/proc/driver/nvidia/params";
constexpr unsigned long restricted = MS_NOSUID | MS_NODEV | MS_NOEXEC;

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
    const temporary_tmpfs scratch(root, directory, operation);
    const base::unique_fd file = scratch.make_file("params", *changed);
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
