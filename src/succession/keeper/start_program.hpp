// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "base/files/unique_fd.hpp"
#include "succession/descriptor_store/descriptor_store.hpp"
#include "succession/descriptor_store/stored_descriptors.hpp"

namespace gpushm::keeper {

/// The exit status of a child that cannot execute the program, as that of a shell.
inline constexpr int cannot_execute = 127;

/// All are used during the call only.
struct program_start {
  const std::vector<std::string>& argv;  ///< the program: absolute or found in $PATH
  const std::string& notification_path;  ///< NOTIFY_SOCKET
  std::size_t capacity;  ///< FDSTORE, as systemd names it: descriptors that it can store
  std::chrono::milliseconds watchdog;  ///< WATCHDOG_USEC; 0: none
  /// Inherited, with their names (`take_inherited_descriptors`). Must not be close-on-exec, or the
  /// handlers of fork_guard.hpp replace driver files, among them GPU memory.
  const std::vector<stored_descriptor>& stored;
  std::array<int, 2> pipes;  ///< also inherited, and not closed by the program; -1: none
  const sigset_t& mask;      ///< of blocked signals
  start_reason why;          ///< GPUSHM_KEEPER_START
  std::atomic<pid_t>& pid;   ///< in memory that forked processes share: stored in it
};

/// Forks, and executes the program with the standard streams and those descriptors only. Calls
/// `opened` with a pidfd of it before its PID is stored. If this process is killed before that, the
/// program is not executed. Call in a process with one thread. Throws `error`: system_error.
void start_program(const program_start& start,
                   const std::function<void(base::unique_fd pidfd)>& opened);

}  // namespace gpushm::keeper
