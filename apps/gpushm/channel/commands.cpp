// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/channel/commands.hpp"

#include "apps/gpushm/command.hpp"
#include "apps/gpushm/commands.hpp"

namespace gpushm::cli {

void add_channel(command_list& commands) {
  add_command_group(commands,
                    "channel",
                    "Try a channel: a ring of slots from one process to several",
                    [](command_list& below) {
                      add_channel_create(below);
                      add_channel_pub(below);
                      add_channel_sub(below);
                      add_channel_stat(below);
                    });
}

}  // namespace gpushm::cli
