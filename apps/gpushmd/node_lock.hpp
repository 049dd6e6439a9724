// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "base/files/unique_fd.hpp"

namespace gpushm::agent {

/// One agent per node: with two plugins of one resource, the kubelet marks the devices of both
/// unhealthy when either ends. Creates the directory if there is none. The lock is held until the
/// result is closed. Throws `error`: address_in_use if another agent runs, permission_denied,
/// system_error.
[[nodiscard]] base::unique_fd lock_node(const std::string& state_directory);

}  // namespace gpushm::agent
