// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace gpushm::base {

/// Number of CPUs that this process may keep busy concurrently: those that its threads may run on,
/// limited by the quota of its cgroups (version 1 and 2) and of their parents, as far as they are
/// mounted. Above 0; half a CPU is 0.5. Files are read below `root`, empty for the machine's own.
/// Throws std::bad_alloc.
[[nodiscard]] double cpu_limit(const std::string& root = {});

}  // namespace gpushm::base
