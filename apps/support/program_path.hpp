// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace gpushm::app {

/// Whether the path is a regular file that this process may execute.
[[nodiscard]] bool is_executable(const std::string& path);

/// The first executable `name` in `directories`, a list with colons as $PATH. Skips empty entries.
[[nodiscard]] std::optional<std::string> find_executable(std::string_view directories,
                                                         const std::string& name);

}  // namespace gpushm::app
