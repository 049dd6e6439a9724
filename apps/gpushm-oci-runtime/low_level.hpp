// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "apps/gpushm-oci-runtime/settings.hpp"

namespace gpushm::oci_runtime {

/// Returns the path of the first of the settings' runtimes that exists: an absolute path, or a name
/// in $PATH or in the system's program directories. Skips this program itself under any name.
/// Throws `error` (system_error) if none exists.
[[nodiscard]] std::string find_low_level(const settings& chosen);

/// Throws `error` (system_error) if `execute_runtime` has executed this program again: a copy of
/// it, or a script that starts it, has the name of the real runtime.
void refuse_recursion();

/// Executes the program at `path` with these arguments and this process's environment and
/// descriptors. Throws `error` on failure; otherwise does not return.
[[noreturn]] void execute_runtime(const std::string& path,
                                  const std::vector<std::string>& arguments);

}  // namespace gpushm::oci_runtime
