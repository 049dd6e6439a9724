// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

#include "base/files/syscall.hpp"
#include "base/process/deadline.hpp"
#include "gpushm/error.hpp"

namespace gpushm::base {

/// How long the locks and sockets of a process may outlive its SIGKILL: the kernel releases them
/// one after the other, and the memory of a GPU before some of them.
inline constexpr std::chrono::milliseconds dying_process_timeout{3'000};

/// Returns what `attempt` returns, which is repeated until `deadline` while it throws
/// address_in_use: a process that is dying may still have the lock or the socket. Blocks. Throws
/// what the last attempt has thrown.
template <typename Attempt>
auto retry_while_in_use(std::chrono::steady_clock::time_point deadline, Attempt&& attempt) {
  constexpr std::chrono::milliseconds pause{10};
  for (;;) {
    try {
      return attempt();
    } catch (const error& why) {
      if (why.code() != errc::address_in_use || time_left(deadline).count() == 0) {
        throw;
      }
    }
    pause_before_retry(pause);
  }
}

}  // namespace gpushm::base
