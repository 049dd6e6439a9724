// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>

#include "base/files/syscall.hpp"
#include "base/text/text.hpp"
#include "containers/hook/hook.hpp"
#include "gpushm/error.hpp"

namespace gpushm::hook {

namespace {

constexpr const char* operation = "create a link in the container";

bool leads_to(int directory, const std::string& name, const std::string& target) {
  std::array<char, PATH_MAX> there{};
  const auto length = ::readlinkat(directory, name.c_str(), there.data(), there.size());
  return length > 0 && std::string_view(there.data(), static_cast<std::size_t>(length)) == target;
}

bool is_on_another_mount(const container_root& root, const std::string& link) {
  return !root.open(base::directory_of(link), O_PATH | O_DIRECTORY) && errno == EXDEV;
}

// What is mounted at the link's place is what the container's user, or another hook, requested.
bool is_mount_point(int directory, const std::string& name) {
  struct statx about {};
  return ::statx(directory, name.c_str(), AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT, 0, &about) == 0 &&
         (about.stx_attributes & about.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT) != 0;
}

void keep_mount(const std::string& link) {
  warn(std::string("warning: ")
           .append(operation)
           .append(" \"")
           .append(link)
           .append("\": something is mounted there, and stays"));
}

void make_link(const container_root& root, const std::string& target, const std::string& link) {
  const std::string name(base::name_of(link));
  const base::unique_fd directory = root.make_directory(base::directory_of(link));
  if (leads_to(directory.get(), name, target)) {
    return;
  }
  if (is_mount_point(directory.get(), name)) {
    keep_mount(link);
    return;
  }
  const std::string temporary = temporary_name(name);
  base::checked(operation, link, "symlink", [&] {
    return ::symlinkat(target.c_str(), directory.get(), temporary.c_str());
  });
  const auto renamed =
      ::renameat(directory.get(), temporary.c_str(), directory.get(), name.c_str());
  if (renamed != 0) {
    const int number = errno;
    static_cast<void>(::unlinkat(directory.get(), temporary.c_str(), 0));
    if (number == EBUSY) {  // a mount point, on kernels before 5.8
      keep_mount(link);
      return;
    }
    base::throw_errno(number, operation, link, "rename");
  }
}

}  // namespace

void create_symlinks(const container_root& root, const hook_options& options) {
  for (const std::string& pair : options.all("link")) {
    const auto middle = pair.find("::");
    const std::string target = pair.substr(0, middle);
    const std::string link = middle == std::string::npos ? std::string() : pair.substr(middle + 2);
    const std::string_view name = base::name_of(link);
    if (target.empty() || name.empty() || name == "." || name == ".." ||
        link.find("::") != std::string::npos) {
      throw error(errc::invalid_argument,
                  operation,
                  pair,
                  "it is not TARGET::LINK",
                  "generate the CDI document again");
    }
    try {
      make_link(root, target, link);
    } catch (const error& failure) {
      // Only a warning for read-only images and volumes: they must already contain the links.
      if (!root.read_only() && !is_on_another_mount(root, link)) {
        throw;
      }
      warn(std::string("warning: ").append(failure.what()));
    }
  }
}

}  // namespace gpushm::hook
