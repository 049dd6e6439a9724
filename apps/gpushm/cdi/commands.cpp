// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/cdi/commands.hpp"

#include "apps/gpushm/command.hpp"
#include "apps/gpushm/commands.hpp"

namespace gpushm::cli {

void add_cdi(command_list& commands) {
  add_command_group(
      commands, "cdi", "Give containers GPUs through CDI documents", [](command_list& below) {
        add_cdi_generate(below);
        add_cdi_hook(below);
        add_cdi_inject(below);
        add_cdi_ipc(below);
        add_cdi_list(below);
        add_cdi_refresh(below);
        add_cdi_share(below);
        add_cdi_validate(below);
        add_cdi_watch(below);
      });
}

}  // namespace gpushm::cli
