// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace gpushm_testing {

// Marks in a traced program where the window of interest begins and ends: a system call that does
// nothing and that nobody else makes. Header-only, so that a victim needs nothing of the tracer.

inline constexpr int begin_mark = 0x67700001;
inline constexpr int end_mark = 0x67700002;

inline void mark_begin() {
  ::syscall(SYS_getpriority, begin_mark, 0);  // "which" is unknown: EINVAL
}
inline void mark_end() {
  ::syscall(SYS_getpriority, end_mark, 0);
}

}  // namespace gpushm_testing
