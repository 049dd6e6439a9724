// SPDX-License-Identifier: Apache-2.0
#include "apps/support/ipc_libraries.hpp"

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <filesystem>

#include "base/process/child_process.hpp"
#include "containers/cdi/document/share_device.hpp"
#include "containers/discover/driver_files/trusted_path.hpp"
#include "gpushm/error.hpp"

namespace gpushm::app {

namespace {

constexpr const char* operation = "use the libraries for CUDA IPC";

}  // namespace

std::string installed_ipc_libraries() {
  const std::filesystem::path program = base::executable_path();
  return (program.parent_path() / "../lib/gpushm/ipc").lexically_normal().string();
}

void check_ipc_libraries(const std::string& directory, const std::string& option) {
  for (const std::string_view name : {cdi::ipc_library, cdi::client_library}) {
    const std::string path = std::string(directory).append("/").append(name);
    struct stat about {};
    if (::lstat(path.c_str(), &about) != 0 || !S_ISREG(about.st_mode)) {
      // A link would lead elsewhere in a container, where only this directory is mounted.
      throw error(errc::system_error,
                  operation,
                  path,
                  "no such file, or not a regular one",
                  "install gpushm (lib/gpushm/ipc), or name the directory: " + option + " DIR");
    }
    if (const auto problem = discover::why_replaceable(path)) {
      throw error(
          errc::invalid_argument,
          operation,
          path,
          "programs of other users would load it, and " + *problem,
          "install it where only root can write, and name the directory: " + option + " DIR");
    }
  }
  struct statvfs about {};
  if (::statvfs(directory.c_str(), &about) == 0 && (about.f_flag & ST_NOEXEC) != 0) {
    throw error(errc::invalid_argument,
                operation,
                directory,
                "its file system is mounted with noexec, so that no program can load them",
                "copy the directory to another file system, and name it: " + option + " DIR");
  }
}

}  // namespace gpushm::app
