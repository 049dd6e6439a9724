// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace gpushm::agent {

/// Puts the program at `source` to `<directory>/gpushm-cdi-hook`, by rename and with mode 0755:
/// documents name it, and container runtimes run it on the host, maybe at this moment. One that is
/// the same byte for byte, with that mode and this process's user, stays. What an earlier call left
/// unfinished is removed. Returns the path. Throws `error`.
[[nodiscard]] std::string install_hook(const std::string& source, const std::string& directory);

/// "gpushm-cdi-hook" in the directory of this program.
[[nodiscard]] std::string hook_beside_this_program();

}  // namespace gpushm::agent
