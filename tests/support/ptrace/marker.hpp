// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace gpushm_testing {

// Mark the begin and end of the traced window in a program: a system call without effect that no
// other code makes. Header-only, so that a victim does not link the tracer.

inline constexpr int begin_mark = 0x67700001;
inline constexpr int end_mark = 0x67700002;

inline void mark_begin() {
  ::syscall(SYS_getpriority, begin_mark, 0);  // "which" is unknown: EINVAL
}
inline void mark_end() {
  ::syscall(SYS_getpriority, end_mark, 0);
}

}  // namespace gpushm_testing
