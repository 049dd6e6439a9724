// SPDX-License-Identifier: Apache-2.0
#pragma once

// The commands below `gpushm channel`. Each function adds one.

namespace gpushm::cli {

class command_list;

void add_channel_create(command_list& commands);
void add_channel_pub(command_list& commands);
void add_channel_stat(command_list& commands);
void add_channel_sub(command_list& commands);

}  // namespace gpushm::cli
