// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "containers/cdi/document/share_device.hpp"

namespace gpushm::agent {

struct settings;

/// Installs the program at `source` as `<directory>/gpushm-cdi-hook`, by rename and with mode 0755:
/// documents name it, and container runtimes may be running it on the host. Keeps an identical file
/// with that mode and this process's user. Removes temporary files of earlier calls. Returns the
/// path. Throws `error`.
[[nodiscard]] std::string install_hook(const std::string& source, const std::string& directory);

/// "gpushm-cdi-hook" in the directory of this program.
[[nodiscard]] std::string hook_next_to_executable();

/// Installs libgpushm-ipc.so and libgpushm.so.1 from the directory `source` in the same way into
/// `directory`, which containers mount. A running container keeps the files that its processes have
/// loaded. Returns `directory`. Throws `error`.
[[nodiscard]] std::string install_ipc_libraries(const std::string& source,
                                                const std::string& directory);

/// Installs both, and the hook program, into the agent's state directory. Without a source, logs
/// the reason and returns nullopt.
[[nodiscard]] std::optional<cdi::ipc_files> install_ipc(const settings& chosen);

}  // namespace gpushm::agent
