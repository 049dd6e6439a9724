// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "apps/gpushm/json_output.hpp"

namespace gpushm::cli {

/// Sends one line of JSON to the demo's main process: {"event": NAME, ...}.
void report(std::string_view event, const json& details = json::object());

/// Blocks until the demo's main process sends a line, and returns it; empty if that process has
/// exited.
[[nodiscard]] std::string next_command();

}  // namespace gpushm::cli
