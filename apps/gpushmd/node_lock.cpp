// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushmd/node_lock.hpp"

#include <fcntl.h>
#include <sys/file.h>

#include <filesystem>
#include <system_error>

#include "base/syscall.hpp"
#include "gpushm/error.hpp"

namespace gpushm::agent {

base::unique_fd lock_node(const std::string& state_directory) {
  constexpr const char* operation = "lock the node";
  const std::string path = state_directory + "/agent.lock";
  std::error_code failed;
  std::filesystem::create_directories(state_directory, failed);  // `open` reports a failure
  base::unique_fd lock(base::checked(operation, path, "open", [&] {
    return ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  }));
  if (base::checked(operation,
                    path,
                    "flock",
                    [&] { return ::flock(lock.get(), LOCK_EX | LOCK_NB); },
                    {EWOULDBLOCK}) == -1) {
    throw error(errc::address_in_use,
                operation,
                path,
                "another agent is running on this node",
                "stop it, or choose another directory: --state-dir DIR");
  }
  return lock;
}

}  // namespace gpushm::agent
