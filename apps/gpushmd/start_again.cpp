// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushmd/start_again.hpp"

#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>

#include "base/files/fork_guard.hpp"
#include "base/report/log.hpp"

namespace gpushm::agent {

void start_again(char* const* argv) {
  constexpr const char* link = "/proc/self/exe";
  // The kernel names the process after the last component of the path.
  std::error_code failed;
  const std::string path = std::filesystem::read_symlink(link, failed).string();
  base::close_others_at_exec();
  if (!path.empty()) {
    ::execv(path.c_str(), argv);
  }
  ::execv(link, argv);  // the file was replaced or removed
  base::log(log_level::error,
            "cannot start again: execve: " + std::generic_category().message(errno));
}

}  // namespace gpushm::agent
