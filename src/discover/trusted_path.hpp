// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

namespace gpushm::discover {

/// Who besides root and this process's user could put something else at `path` (absolute), as the
/// end of a sentence: "/opt/x can be written by others"; nothing when no other user can, or it is
/// not there. Looks at the owner and mode of `path` and of each directory above it, of the links on
/// the way, and of what they lead to. In a directory with the sticky bit only entries count.
[[nodiscard]] std::optional<std::string> who_may_replace(const std::string& path);

}  // namespace gpushm::discover
