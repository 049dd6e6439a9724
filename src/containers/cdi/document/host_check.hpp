// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "containers/cdi/document/document.hpp"
#include "containers/yaml/problem.hpp"

namespace gpushm::cdi {

/// Reports paths of a valid document that are missing or different on this machine: device nodes
/// (also with other major and minor numbers), files to mount, hook programs. The usual cause is a
/// document older than the driver; a container with the device does not start. Reports each path
/// once. Blocks on the file system.
[[nodiscard]] std::vector<yaml::problem> check_on_host(const document& content,
                                                       const std::string& file);

}  // namespace gpushm::cdi
