// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "tests/fence/gpu_work.hpp"

namespace gpushm::fence_rounds {

/// Who else has the victim's driver files.
enum class holder : std::uint8_t {
  none,
  child,          ///< a forked child, with all of them
  child_handled,  ///< a forked child that has put /dev/null in their places, then let go of the
                  ///< pipe
  child_exits,    ///< the same, and ends by exit(), which runs the driver's handlers
  child_execs,    ///< a forked child that executes another program
  bystander,      ///< another process, which was sent all of them
  exported,       ///< another process, which was sent the exported memory's alone
};

/// How the victim ends.
enum class ending : std::uint8_t {
  killed,   ///< SIGKILL
  aborted,  ///< SIGABRT, with a core dump where the machine writes them
  exits,    ///< _exit in the middle of its work
  execs,    ///< executes another program, which lives on
};

struct victim_options {
  work does = work::kernel;
  holder others = holder::none;
  ending ends = ending::killed;
  std::uint32_t extra_gib = 0;      ///< mapped besides
  std::uint32_t unprivileged = 0;   ///< run as uid and gid 1000
  std::uint32_t pid_namespace = 0;  ///< in a PID namespace of its own
};

/// The first packet. With it come: the memory, the victim's pidfd, the life pipe's read end, the
/// child's pidfd (if `has_child`), and, for `holder::bystander`, the driver files.
struct greeting {
  std::uint32_t has_child = 0;
  std::uint32_t files = 0;  ///< of the driver that the victim has
  char failure[256] = {};   ///< not empty: it cannot do it, and why
};

/// Shares memory, makes the GPU write it, says so on `socket`, and goes on until it is ended. The
/// packet "go" makes it exit or execute, where that is how it ends. Does not return.
[[noreturn]] void be_victim(const victim_options& options, int socket);

}  // namespace gpushm::fence_rounds
