// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

namespace gpushm_testing {

/// Calls fork(2) when every other thread of this process sleeps in a system call, or after five
/// seconds, stretched by `scaled_timeout`. For children that continue without exec: GCC 12's
/// AddressSanitizer does not put its allocator's locks in order at a fork, so a child hangs if
/// another thread was allocating.
[[nodiscard]] pid_t quiet_fork();

}  // namespace gpushm_testing
