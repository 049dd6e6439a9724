// SPDX-License-Identifier: Apache-2.0
#pragma once

// The commands below `gpushm cdi`. Each function adds one.

#include "apps/gpushm/arguments.hpp"

namespace CLI {
class App;
}

namespace gpushm::cli {

void add_cdi_generate(CLI::App& cdi, request& parsed);
void add_cdi_hook(CLI::App& cdi, request& parsed);
void add_cdi_inject(CLI::App& cdi, request& parsed);
void add_cdi_ipc(CLI::App& cdi, request& parsed);
void add_cdi_list(CLI::App& cdi, request& parsed);
void add_cdi_refresh(CLI::App& cdi, request& parsed);
void add_cdi_share(CLI::App& cdi, request& parsed);
void add_cdi_validate(CLI::App& cdi, request& parsed);
void add_cdi_watch(CLI::App& cdi, request& parsed);

}  // namespace gpushm::cli
