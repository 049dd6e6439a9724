// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>
#include <functional>
#include <optional>

namespace gpushm::keeper {

/// A keeper is two processes with one descriptor table (CLONE_FILES): the guard, and its child, the
/// worker, which does everything. When one of them is killed, no descriptor is closed. A new worker
/// continues with the table and the memory that both share; a worker whose guard is killed becomes
/// the guard of the next one.
struct guarded_work {
  /// In a worker: returns the exit status of both, or nothing once `guard`, a pidfd of the guard,
  /// is readable. Owns no descriptor after it has returned nullopt. Called once for each worker.
  std::function<std::optional<int>(int guard)> run;
  /// In the guard, which has received one of `signals`; it then sends it on to the worker.
  std::function<void(int number)> note;
  /// Blocked in this thread, the only one; with SIGCHLD.
  sigset_t signals;
};

/// Blocks until a worker exits, and returns its status. Throws `error`: system_error, if the first
/// worker cannot be started.
[[nodiscard]] int run_guarded(const guarded_work& guarded_work);

}  // namespace gpushm::keeper
