// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "apps/gpushm/arguments.hpp"

namespace CLI {
class App;
}

namespace gpushm::cli {

/// Adds `gpushm cdi` with its commands. When `named` is one of them, adds only that one: hooks and
/// injection run for each container and must start fast.
void add_cdi(CLI::App& root, request& parsed, std::string_view named);

}  // namespace gpushm::cli
