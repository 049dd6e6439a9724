// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "apps/gpushmd/settings.hpp"

namespace gpushm::agent {

enum class agent_end {
  stopped,  ///< by SIGINT or SIGTERM
  restart   ///< the program has to start again (node_changes.hpp)
};

/// Runs the agent until SIGINT or SIGTERM, or until the driver changes. On SIGHUP, and when the
/// settings file changes, it rereads its settings with `reload`, which throws `error` for invalid
/// settings; the agent then keeps the old ones. Stops within seconds, even if the driver or clients
/// hang. Throws `error` for failures that a retry cannot fix.
[[nodiscard]] agent_end run_agent(const settings& chosen, const std::function<settings()>& reload);

/// Whether a thread was abandoned because it did not end in time; the process must then exit by
/// _exit.
[[nodiscard]] bool anything_abandoned() noexcept;

}  // namespace gpushm::agent
