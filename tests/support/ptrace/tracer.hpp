// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace gpushm_testing {

/// Result of a traced program between its marks (ptrace/marker.hpp).
struct trace_result {
  bool began = false;   ///< the begin mark was passed
  bool ended = false;   ///< the end mark was passed
  bool killed = false;  ///< by the tracer, at the entry of a call
  std::uint64_t calls =
      0;  ///< system calls entered in the window, by all threads, including the fatal one
  std::string fatal_call;      ///< name of the call that never ran; empty unless killed
  bool fatal_in_main = false;  ///< the main thread made the fatal call
  int wait_status = 0;         ///< as waitpid(2) reports it
};

/// Attaches to `pid` and its later threads without stopping it; children that it forks run
/// untraced. The calling thread becomes the tracer. Throws `harness_error` if that is not
/// permitted.
void trace_attach(pid_t pid);

/// Follows the process that `trace_attach` attached to until it has exited; kills it with SIGKILL
/// at the entry of its `kill_at`-th call in the window (1 is the first; 0: never). Must run in the
/// thread that attached, which must have no other children. Blocks without a deadline: SIGKILL to
/// `pid` ends it.
[[nodiscard]] trace_result trace_to_end(pid_t pid, std::uint64_t kill_at);

}  // namespace gpushm_testing
