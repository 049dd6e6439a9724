// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace gpushm::app {

/// The directory of libgpushm-ipc.so and its libgpushm.so.1 that was installed with this program:
/// "../lib/gpushm/ipc" from the program's directory. It need not exist.
[[nodiscard]] std::string installed_ipc_libraries();

/// Throws `error` unless `directory` (absolute) has both libraries as regular files that only root
/// and this user can replace, on a file system from which code can be executed: other users'
/// programs load them. `option` sets the directory and is named in the error's next step.
void check_ipc_libraries(const std::string& directory, const std::string& option);

}  // namespace gpushm::app
