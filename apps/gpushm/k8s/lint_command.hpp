// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/gpushm/arguments.hpp"

namespace CLI {
class App;
}

namespace gpushm::cli {

/// Adds `gpushm k8s lint`.
void add_k8s_lint(CLI::App& k8s, request& parsed);

}  // namespace gpushm::cli
