// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/cdi/cdi_arguments.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>

#include "apps/gpushm/cdi/commands.hpp"

namespace gpushm::cli {

void add_cdi(CLI::App& root, request& parsed, std::string_view named) {
  struct row {
    std::string_view name;
    void (*add)(CLI::App&, request&);
  };
  constexpr auto commands = std::to_array<row>({{"generate", add_cdi_generate},
                                                {"hook", add_cdi_hook},
                                                {"inject", add_cdi_inject},
                                                {"ipc", add_cdi_ipc},
                                                {"list", add_cdi_list},
                                                {"refresh", add_cdi_refresh},
                                                {"share", add_cdi_share},
                                                {"validate", add_cdi_validate},
                                                {"watch", add_cdi_watch}});
  CLI::App* cdi = root.add_subcommand("cdi", "Give containers GPUs through CDI documents");
  cdi->footer("");
  cdi->require_subcommand(1);
  const bool known = std::any_of(
      commands.begin(), commands.end(), [&](const row& each) { return each.name == named; });
  for (const row& each : commands) {
    if (!known || each.name == named) {
      each.add(*cdi, parsed);
    }
  }
}

}  // namespace gpushm::cli
