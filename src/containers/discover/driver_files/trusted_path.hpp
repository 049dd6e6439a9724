// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

namespace gpushm::discover {

/// Why a user other than root and this process's user could replace `path` (absolute), as a clause:
/// "/opt/x is writable by all users"; empty when no other user can, or it does not exist. Checks
/// the owner and mode of `path`, of its parent directories, and of links on the way with their
/// targets. For a directory with the sticky bit, only the owners of its entries matter.
[[nodiscard]] std::optional<std::string> why_replaceable(const std::string& path);

}  // namespace gpushm::discover
