// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/gpushm/arguments.hpp"

namespace CLI {
class App;
}

namespace gpushm::cli {

/// Adds `gpushm channel` with its commands.
void add_channel(CLI::App& root, request& parsed);

}  // namespace gpushm::cli
