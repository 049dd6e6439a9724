// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpushm::base {

/// Which descriptors are open files of the GPU driver's device nodes (/dev/nvidia*, wherever they
/// are mounted). The driver opens them close-on-exec. What a program has made inheritable (an
/// exported allocation that it hands to a child) does not count.

/// Puts `null`, a descriptor of /dev/null, in the place of each of them, so that their numbers stay
/// taken; -1: opens one when there are any. False: some may be left. Only functions that are safe
/// in signal handlers. For forked children: CUDA does not work there, and the GPU work of the
/// parent goes on for as long as anybody has its files (docs/sharing.md, "The fence").
bool replace_driver_files(int null) noexcept;

/// True unless it is certain that no living descendant of this process has one of its driver files:
/// one that was forked off before the handlers of fork_guard.hpp were there, or without them. Reads
/// /proc: milliseconds where a thousand processes run. Never throws; thread-safe.
[[nodiscard]] bool descendants_may_have_driver_files() noexcept;

}  // namespace gpushm::base
