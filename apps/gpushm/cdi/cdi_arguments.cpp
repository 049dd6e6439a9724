// SPDX-License-Identifier: Apache-2.0
#include "cdi/cdi_arguments.hpp"

#include <algorithm>
#include <array>

#include "cdi/generate.hpp"
#include "cdi/hook_command.hpp"
#include "cdi/inject.hpp"
#include "cdi/list.hpp"
#include "cdi/refresh.hpp"
#include "cdi/share.hpp"
#include "cdi/validate.hpp"
#include "cdi/watch.hpp"

namespace gpushm::cli {

void add_cdi(CLI::App& root, request& asked, std::string_view named) {
  struct row {
    std::string_view name;
    void (*add)(CLI::App&, request&);
  };
  constexpr auto commands = std::to_array<row>({{"generate", add_cdi_generate},
                                                {"hook", add_cdi_hook},
                                                {"inject", add_cdi_inject},
                                                {"list", add_cdi_list},
                                                {"refresh", add_cdi_refresh},
                                                {"share", add_cdi_share},
                                                {"validate", add_cdi_validate},
                                                {"watch", add_cdi_watch}});
  CLI::App* cdi = root.add_subcommand("cdi", "Give containers their GPUs: CDI documents");
  cdi->footer("");
  cdi->require_subcommand(1);
  const bool known = std::any_of(
      commands.begin(), commands.end(), [&](const row& each) { return each.name == named; });
  for (const row& each : commands) {
    if (!known || each.name == named) {
      each.add(*cdi, asked);
    }
  }
}

}  // namespace gpushm::cli
