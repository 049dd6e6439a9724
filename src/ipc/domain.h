// SPDX-License-Identifier: Apache-2.0
#ifndef GPUSHM_IPC_DOMAIN_H
#define GPUSHM_IPC_DOMAIN_H

#include <stdbool.h>
#include <stdint.h>

// The domain's broker, through libgpushm.so.1, which is loaded from this library's folder at the
// first use. Any thread. Each call ends after a few seconds at most.

struct gpushm_descriptor;

// Whether a domain is mounted, named by the environment, or a broker of this user's. Cheap; the
// broker may still be absent.
bool ipc_has_domain(void);

enum ipc_registered { ipc_registered, ipc_number_is_taken, ipc_not_registered };
// Registers `fd` under `number`, or with 0 under one that the broker's domain does not have, which
// is written to `chosen`. `fd` stays the caller's.
enum ipc_registered ipc_register(int fd,
                                 uint32_t number,
                                 uint64_t tag,
                                 struct gpushm_descriptor** registration,
                                 uint32_t* chosen);
// Ends a registration, without waiting for the broker.
void ipc_unregister(struct gpushm_descriptor* registration);
// Returns a new descriptor of what is registered under `number` (and with `tag`, unless that is 0),
// or -1.
int ipc_resolve(uint32_t number, uint64_t tag);

#endif
