// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

#include "apps/gpushm/arguments.hpp"

namespace gpushm::cli {

/// Adds `gpushm cdi list`.
void add_cdi_list(CLI::App& cdi, request& parsed);

}  // namespace gpushm::cli
