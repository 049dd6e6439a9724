// SPDX-License-Identifier: Apache-2.0
#pragma once

// The commands below `gpushm weights`. Each function adds one.

namespace gpushm::cli {

class command_list;

void add_weights_diff(command_list& commands);
void add_weights_list(command_list& commands);
void add_weights_pin(command_list& commands);
void add_weights_rollback(command_list& commands);
void add_weights_unpin(command_list& commands);
void add_weights_verify(command_list& commands);

}  // namespace gpushm::cli
