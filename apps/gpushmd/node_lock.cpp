// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushmd/node_lock.hpp"

#include <filesystem>
#include <system_error>

#include "base/files/file.hpp"
#include "gpushm/error.hpp"

namespace gpushm::agent {

base::unique_fd lock_node(const std::string& state_directory) {
  constexpr const char* operation = "lock the node";
  const std::string path = state_directory + "/agent.lock";
  std::error_code failed;
  std::filesystem::create_directories(state_directory, failed);  // the lock reports a failure
  base::unique_fd lock = base::try_lock_file(operation, path);
  if (!lock) {
    throw error(errc::address_in_use,
                operation,
                path,
                "another agent is running on this node",
                "stop it, or choose another directory: --state-dir DIR");
  }
  return lock;
}

}  // namespace gpushm::agent
