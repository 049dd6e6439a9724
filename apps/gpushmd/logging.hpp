// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "apps/gpushmd/settings.hpp"

namespace gpushm::agent {

/// Sends this process's log to standard error, one line per message,
///   2026-11-21T12:00:00.000Z info  text
/// or one JSON object per message, with the members time, level and message. A multi-line message
/// becomes several lines, or one object.
void start_log(const std::string& level, log_format as);

}  // namespace gpushm::agent
