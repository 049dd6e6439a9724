// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <string_view>

#include "apps/gpushm/arguments.hpp"

namespace gpushm::cli {

/// Adds `gpushm cdi` with its commands; when `named` is one of them, with that one only: hooks and
/// injection start for each container.
void add_cdi(CLI::App& root, request& asked, std::string_view named);

}  // namespace gpushm::cli
