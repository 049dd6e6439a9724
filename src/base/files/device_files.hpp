// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpushm::base {

/// Finds the descriptors that are open files of the GPU driver's device nodes (/dev/nvidia*,
/// wherever they are mounted). The driver opens them close-on-exec. Descriptors that a program has
/// made inheritable (an exported allocation that it passes to a child) are not included.

/// Replaces each of them with `null`, a descriptor of /dev/null, so that their numbers stay in use;
/// -1: opens /dev/null if there are any. Returns false if some may be left. Async-signal-safe. For
/// forked children: CUDA does not work there, and the parent's GPU work continues for as long as
/// any process has its files (docs/sharing.md, "The fence").
bool replace_driver_files(int null) noexcept;

/// True unless it is certain that no living descendant of this process has one of its driver files:
/// a descendant that was forked before the handlers of fork_guard.hpp were installed, or without
/// them. If this process has children and driver files, reads /proc: milliseconds where a hundred
/// processes run. Never throws; thread-safe.
[[nodiscard]] bool descendants_may_have_driver_files() noexcept;

}  // namespace gpushm::base
