// SPDX-License-Identifier: Apache-2.0
#ifndef GPUSHM_IPC_ENTRY_H
#define GPUSHM_IPC_ENTRY_H

// Functions of the C library. entry.S passes the first three on by a jump, with all registers as
// they were, and has their values.
enum ipc_entry {
  ipc_entry_dlsym,
  ipc_entry_dlvsym,
  ipc_entry_syscall,
  ipc_entry_close,
  ipc_entry_count
};

// The next definition. Also called by entry.S.
void* ipc_next_of(enum ipc_entry entry);
// Where a call of dlsym or dlvsym for `name` continues. Called by entry.S.
void* ipc_route(enum ipc_entry entry, const char* name);

#endif
