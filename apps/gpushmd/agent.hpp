// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "apps/gpushmd/settings.hpp"

namespace gpushm::agent {

/// Runs the agent until SIGINT or SIGTERM. SIGHUP, and a change of the settings' file, has it read
/// its settings again with `reload`, which throws `error` for settings that cannot be used: then
/// the old ones stay. Ends within seconds, whatever driver and clients do. The exit status. Throws
/// `error` for what waiting does not change.
int run_agent(const settings& chosen, const std::function<settings()>& reload);

/// Whether a thread did not end: then the process must end by _exit.
[[nodiscard]] bool anything_left_behind() noexcept;

}  // namespace gpushm::agent
