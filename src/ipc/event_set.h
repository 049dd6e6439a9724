// SPDX-License-Identifier: Apache-2.0
#ifndef GPUSHM_IPC_EVENT_SET_H
#define GPUSHM_IPC_EVENT_SET_H

#include <stdbool.h>

// Events whose work is completed before cuEventRecord returns, because another process cannot wait
// for it. Any thread; a look-up while the set is empty costs one load.

// Returns false if memory is short.
bool ipc_add_event(const void* event);
void ipc_remove_event(const void* event);
bool ipc_has_event(const void* event);

#endif
