// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/weights/commands.hpp"

#include "apps/gpushm/command.hpp"
#include "apps/gpushm/commands.hpp"

namespace gpushm::cli {

void add_weights(command_list& commands) {
  add_command_group(commands,
                    "weights",
                    "Show, compare, verify and roll back versions of model weights",
                    [](command_list& below) {
                      add_weights_list(below);
                      add_weights_diff(below);
                      add_weights_verify(below);
                      add_weights_rollback(below);
                      add_weights_pin(below);
                      add_weights_unpin(below);
                    });
}

}  // namespace gpushm::cli
