// SPDX-License-Identifier: Apache-2.0
#pragma once

// The commands below `gpushm cdi`. Each function adds one.

namespace gpushm::cli {

class command_list;

void add_cdi_generate(command_list& commands);
void add_cdi_hook(command_list& commands);
void add_cdi_inject(command_list& commands);
void add_cdi_ipc(command_list& commands);
void add_cdi_list(command_list& commands);
void add_cdi_refresh(command_list& commands);
void add_cdi_share(command_list& commands);
void add_cdi_validate(command_list& commands);
void add_cdi_watch(command_list& commands);

}  // namespace gpushm::cli
