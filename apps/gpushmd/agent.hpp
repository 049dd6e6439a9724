// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "settings.hpp"

namespace gpushm::agent {

/// Runs the agent until SIGINT or SIGTERM; SIGHUP has it read its settings again with `reload`,
/// which throws `error` for settings that cannot be used: then the old ones stay. The exit status.
/// Throws `error` for what no waiting mends.
int run_agent(const settings& chosen, const std::function<settings()>& reload);

}  // namespace gpushm::agent
