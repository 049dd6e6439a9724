// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace gpushm::agent {

/// Installs the program at `source` as `<directory>/gpushm-cdi-hook`, by rename and with mode 0755:
/// documents name it, and container runtimes may be running it on the host. Keeps an identical file
/// with that mode and this process's user. Removes temporary files of earlier calls. Returns the
/// path. Throws `error`.
[[nodiscard]] std::string install_hook(const std::string& source, const std::string& directory);

/// "gpushm-cdi-hook" in the directory of this program.
[[nodiscard]] std::string hook_next_to_executable();

}  // namespace gpushm::agent
