// SPDX-License-Identifier: Apache-2.0
#ifndef GPUSHM_IPC_SETTINGS_H
#define GPUSHM_IPC_SETTINGS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

// Whether this library changes anything: false with GPUSHM_IPC=0, and in programs that have other
// rights than their caller (set-uid, capabilities of files), which /etc/ld.so.preload also reaches.
bool ipc_is_on(void);

// Writes a line to standard error with GPUSHM_IPC_LOG=1: one for each call that concerns IPC.
void ipc_log(const char* format, ...) __attribute__((format(printf, 1, 2)));
// Writes a line to standard error, the first time with the same `was_said`.
void ipc_say_once(atomic_bool* was_said, const char* format, ...)
    __attribute__((format(printf, 2, 3)));

// Identifies this process in tags of handles (ipc/handle.h); another one in a forked child.
uint64_t ipc_process_tag(void);
// A random number, which other processes are unlikely to have.
uint64_t ipc_random(void);

#endif
