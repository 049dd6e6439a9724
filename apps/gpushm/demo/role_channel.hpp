// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "apps/gpushm/json_output.hpp"

namespace gpushm::cli {

/// One line of JSON to the process that runs the demo: {"event": NAME, ...}.
void report(std::string_view event, const json& details = json::object());

/// Blocks until the demo's process says something: its line, or nothing when it is gone.
[[nodiscard]] std::string next_command();

}  // namespace gpushm::cli
