// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "apps/support/log_line.hpp"

namespace gpushm::agent {

/// Sends this process's log to standard error (`app::program_log`), and logs the version. A
/// multi-line message becomes several lines, or one JSON object.
void start_log(const std::string& level, app::log_format format);

}  // namespace gpushm::agent
