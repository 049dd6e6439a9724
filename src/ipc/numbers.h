// SPDX-License-Identifier: Apache-2.0
#ifndef GPUSHM_IPC_NUMBERS_H
#define GPUSHM_IPC_NUMBERS_H

#include <stdint.h>

// The numbers of exported descriptors of this process.
struct ipc_numbers {
  uint64_t first;
  uint64_t count;
};

// Chooses them by the limits of open files (RLIMIT_NOFILE): from the soft limit on, where they are
// not given to ordinary descriptors. Where the hard limit leaves less than 1,024, the upper half
// below it. At most 65,536: the kernel's table of descriptors grows to the largest. Pure.
struct ipc_numbers ipc_choose_numbers(uint64_t soft, uint64_t hard);

enum { ipc_most_numbers = 65536 };

#endif
