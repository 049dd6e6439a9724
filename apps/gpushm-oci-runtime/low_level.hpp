// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "apps/gpushm-oci-runtime/settings.hpp"

namespace gpushm::oci_runtime {

/// The path of the first of the settings' runtimes that is there: absolute, or a name in $PATH or
/// where the system keeps its programs. This program itself does not count, whatever it is called.
/// Throws `error` (system_error) when there is none.
[[nodiscard]] std::string find_low_level(const settings& chosen);

/// Throws `error` (system_error) when this process has become this program by `become`: a copy of
/// it, or a script that starts it, has the name of the real runtime.
void refuse_coming_back();

/// Becomes the program at `path` with these arguments, and this process's environment and
/// descriptors. Returns only by throwing `error`.
[[noreturn]] void become(const std::string& path, const std::vector<std::string>& arguments);

}  // namespace gpushm::oci_runtime
