// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

#include "apps/gpushm/arguments.hpp"

namespace gpushm::cli {

/// Adds `gpushm cdi hook NAME …`.
void add_cdi_hook(CLI::App& cdi, request& parsed);

}  // namespace gpushm::cli
