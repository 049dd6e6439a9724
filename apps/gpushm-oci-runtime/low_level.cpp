// SPDX-License-Identifier: Apache-2.0
#include "low_level.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/syscall.hpp"
#include "support/oci/runtime.hpp"

namespace gpushm::oci_runtime {

namespace {

bool is_this_program(const std::string& path) {
  struct stat own {};
  struct stat other {};
  return ::stat("/proc/self/exe", &own) == 0 && ::stat(path.c_str(), &other) == 0 &&
         own.st_dev == other.st_dev && own.st_ino == other.st_ino;
}

}  // namespace

std::string find_low_level(const settings& chosen) {
  std::string tried;
  for (const std::string& name : chosen.runtimes) {
    const auto found = app::oci::find_runtime(name);
    if (found && !is_this_program(found->path)) {
      return found->path;
    }
    tried += tried.empty() ? "" : ", ";
    tried += name;
    tried += found ? " (is this program itself)" : "";
  }
  throw error(errc::system_error,
              "find runtime",
              tried,
              "there is no such program in $PATH",
              "install runc or crun, or name one as \"runtimes\" in the configuration");
}

void become(const std::string& path, const std::vector<std::string>& arguments) {
  std::vector<std::string> all{path};
  all.insert(all.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  pointers.reserve(all.size() + 1);
  for (std::string& each : all) {
    pointers.push_back(each.data());
  }
  pointers.push_back(nullptr);
  ::execv(path.c_str(), pointers.data());
  base::throw_errno(errno, "start runtime", path, "execv");
}

}  // namespace gpushm::oci_runtime
