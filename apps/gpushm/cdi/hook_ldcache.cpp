// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <linux/capability.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>

#include "base/syscall.hpp"
#include "base/text.hpp"
#include "cdi/hook.hpp"
#include "gpushm/error.hpp"
#include "output.hpp"
#include "support/child_process.hpp"

namespace gpushm::cli {

namespace {

constexpr std::chrono::seconds patience{30};

// Of other distributions than the host's: its ldconfig has not compiled them in.
constexpr std::array system_directories{"/lib/x86_64-linux-gnu",
                                        "/usr/lib/x86_64-linux-gnu",
                                        "/lib/aarch64-linux-gnu",
                                        "/usr/lib/aarch64-linux-gnu",
                                        "/lib64",
                                        "/usr/lib64",
                                        "/lib",
                                        "/usr/lib"};

// Without it `ldconfig -r` would not change its root but follow the image's links on the host.
bool may_change_root() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, 2> data{};
  return ::syscall(SYS_capget, &header, data.data()) == 0 &&
         (data[0].effective & (1U << static_cast<unsigned int>(CAP_SYS_CHROOT))) != 0;
}

// The program itself: Ubuntu's /sbin/ldconfig is a script that needs a shell in the image.
std::string find_ldconfig(const std::string& asked) {
  for (const std::string& path : {std::string(asked).append(".real"), asked}) {
    if (path.starts_with('/') && ::access(path.c_str(), X_OK) == 0) {
      return path;
    }
  }
  return {};
}

std::string lines(const std::vector<std::string>& all) {
  std::string text;
  for (const std::string& each : all) {
    // Nothing but a path: the file has other statements too.
    if (each.starts_with('/') && each.find_first_of("\n\r#") == std::string::npos) {
      text.append(each).append("\n");
    }
  }
  return text;
}

// Returns whether the container's own configuration reads ours.
bool configure(const container_root& root, const std::vector<std::string>& folders) {
  root.write(linker_directory, driver_file, lines(folders));
  std::vector<std::string> there;
  for (const char* directory : system_directories) {
    if (root.open(directory, O_PATH | O_DIRECTORY)) {
      there.emplace_back(directory);
    }
  }
  root.write(linker_directory, system_file, lines(there));
  const auto own = root.read("/etc/ld.so.conf");
  if (!own && !root.open("/etc/ld.so.conf", O_PATH | O_NOFOLLOW)) {
    root.write("/etc", "ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n");
    return true;
  }
  return own && own->find("ld.so.conf.d") != std::string::npos;
}

void run_ldconfig(const container_root& root,
                  const std::string& program,
                  const std::vector<std::string>& folders) {
  app::child_options options;
  options.argv = {
      program, "-i", "-r", root.path(), "-f", "/etc/ld.so.conf", "-C", "/etc/ld.so.cache"};
  options.argv.insert(options.argv.end(), folders.begin(), folders.end());
  options.environment = {{"PATH", "/usr/sbin:/usr/bin:/sbin:/bin"}};
  options.merge_stderr = true;
  app::child_process child = app::child_process::start(options);
  child.close_input();
  const app::deadline until = app::deadline_in(patience);
  std::string said;
  const bool ended = child.read_all(said, until);
  const auto status = ended ? child.wait(until) : std::nullopt;
  if (!status || !WIFEXITED(*status) || WEXITSTATUS(*status) != 0) {
    const auto told = base::lines_of(said);
    note(std::string("warning: the container's cache of libraries is not up to date: ")
             .append(program)
             .append(": ")
             .append(status ? app::status_text(*status) : std::string("no end in time"))
             .append(told.empty() ? "" : ": ")
             .append(told.empty() ? std::string_view() : told.back()));
  }
}

}  // namespace

void update_ldcache(const container_root& root, const hook_options& options) {
  const std::vector<std::string> folders = options.all("folder");
  const std::string asked = options.last("ldconfig-path");
  const std::string program = find_ldconfig(asked.empty() ? "/sbin/ldconfig" : asked);
  if (program.empty() || !may_change_root()) {
    note(std::string("warning: the container's cache of libraries is not up to date: ")
             .append(program.empty() ? "the host has no ldconfig"
                                     : "this hook may not change its root (CAP_SYS_CHROOT)"));
    return;
  }
  bool included = false;
  try {
    included = configure(root, folders);
  } catch (const error& failure) {
    // A root that cannot be written: the image's own cache stays.
    note(std::string("warning: the container's cache of libraries is not up to date: ")
             .append(failure.what()));
    return;
  }
  run_ldconfig(root, program, included ? std::vector<std::string>() : folders);
}

}  // namespace gpushm::cli
