// SPDX-License-Identifier: Apache-2.0
// kill(2) without its special numbers: 0, -1 and other negative ones stand for many processes, and
// for root -1, the result of a failed fork, means every process of the machine.
#pragma once

#include <sys/types.h>

#include <cerrno>
#include <csignal>

namespace gpushm::base {

/// Sends `number` to `process` only; 0 asks whether it exists. Returns 0, or -1 with errno as
/// kill(2), and with EINVAL where `process` is not positive. Async-signal-safe.
inline int signal_process(pid_t process, int number) noexcept {
  if (process <= 0) {
    errno = EINVAL;
    return -1;
  }
  return ::kill(process, number);
}

/// As `signal_process`, for all processes of the group that `leader` has made.
inline int signal_group(pid_t leader, int number) noexcept {
  if (leader <= 1) {
    errno = EINVAL;
    return -1;
  }
  return ::kill(-leader, number);
}

}  // namespace gpushm::base
