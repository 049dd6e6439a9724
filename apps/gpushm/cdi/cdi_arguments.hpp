// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

#include "arguments.hpp"

namespace gpushm::cli {

/// Adds `gpushm cdi` with its commands.
void add_cdi(CLI::App& root, request& asked);

}  // namespace gpushm::cli
