// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "tests/fence/gpu_work.hpp"

namespace gpushm::fence_rounds {

/// Other processes that have the victim's driver files.
enum class holder : std::uint8_t {
  none,
  child,  ///< a forked child, with all of them
  /// A forked child that has replaced them by /dev/null and then closed the pipe.
  child_handled,
  child_exits,  ///< the same, and calls exit(), which runs the driver's handlers
  child_execs,  ///< a forked child that executes another program
  bystander,    ///< another process, which was sent all of them
  exported,     ///< another process, which was sent only those of the exported memory
};

/// How the victim ends.
enum class ending : std::uint8_t {
  killed,   ///< SIGKILL
  aborted,  ///< SIGABRT, with a core dump where the machine writes them
  exits,    ///< _exit during its work
  execs,    ///< executes another program, which stays alive
};

struct victim_options {
  work does = work::kernel;
  holder others = holder::none;
  ending ends = ending::killed;
  std::uint32_t extra_gib = 0;      ///< additional mapped memory
  std::uint32_t unprivileged = 0;   ///< run as uid and gid 1000
  std::uint32_t pid_namespace = 0;  ///< in a separate PID namespace
};

/// The first packet. It carries the memory, the victim's pidfd, the life pipe's read end, the
/// child's pidfd (if `has_child`), and, for `holder::bystander`, the driver files.
struct greeting {
  std::uint32_t has_child = 0;
  std::uint32_t files = 0;  ///< driver files that the victim has
  char failure[256] = {};   ///< not empty: why the victim cannot run
};

/// Shares memory, makes the GPU write it, reports that on `socket`, and continues until it is
/// killed. The packet "go" makes it exit or execute another program if it ends that way. Does not
/// return.
[[noreturn]] void run_victim(const victim_options& options, int socket);

}  // namespace gpushm::fence_rounds
