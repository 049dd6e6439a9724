// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "cdi/document/document.hpp"
#include "yaml/problem.hpp"

namespace gpushm::cdi {

/// What a valid document names and this machine does not have, or has otherwise: device nodes (also
/// with other numbers than the document says), files to mount, programs of hooks. The usual sign
/// that the document is older than the driver; a container with such a device does not start. Each
/// thing once. Blocks as long as asking the file system takes.
[[nodiscard]] std::vector<yaml::problem> check_on_host(const document& content,
                                                       const std::string& file);

}  // namespace gpushm::cdi
