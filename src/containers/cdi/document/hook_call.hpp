// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "containers/cdi/document/document.hpp"

namespace gpushm::cdi {

/// A call of the hook `name` by the hook program at the path `program` on the host: gpushm,
/// gpushm-cdi-hook, or a program of the NVIDIA Container Toolkit.
[[nodiscard]] hook hook_call(const std::string& program,
                             const std::string& name,
                             std::vector<std::string> arguments);

}  // namespace gpushm::cdi
