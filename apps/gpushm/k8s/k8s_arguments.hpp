// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/gpushm/arguments.hpp"

namespace CLI {
class App;
}

namespace gpushm::cli {

/// Adds `gpushm k8s` with its commands.
void add_k8s(CLI::App& root, request& parsed);

}  // namespace gpushm::cli
