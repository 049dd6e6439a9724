// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "apps/gpushmd/settings.hpp"

namespace gpushm::agent {

/// Sends what this process logs to standard error from now on: a line each,
///   2026-11-21T12:00:00.000Z info  text
/// or an object each, with the members time, level and message. A text of several lines is several
/// lines, or one object.
void start_log(const std::string& level, log_format as);

}  // namespace gpushm::agent
