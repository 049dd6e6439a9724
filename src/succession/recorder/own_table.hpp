// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

#include "base/files/unique_fd.hpp"

namespace gpushm::succession {

/// Starts a detached thread with a descriptor table of its own (CLOSE_RANGE_UNSHARE), which
/// contains only the standard streams and copies of `kept`, under the same numbers. Closing what a
/// member sent (a socket with SO_LINGER, a file whose FUSE server does not answer) may block as
/// long as its owner likes, and a blocked thread cannot be killed: only such threads may do it.
///
/// `begin`, which must not throw, is called first, in the thread, and this blocks until it has
/// returned; then `run` is called. Returns false if the kernel or a system call filter refuses the
/// table: the thread then shares the program's. Throws `errc::system_error`: there is no thread.
[[nodiscard]] bool start_with_own_table(const char* name,
                                        std::vector<int> kept,
                                        const std::function<void()>& begin,
                                        std::function<void()> run);

/// Closes files whose last close may block, without blocking: in this program's table at once, in
/// the table of another thread. Sockets do not keep that thread, however long their SO_LINGER is; a
/// file whose flush does not return does. If no thread can be started they stay open, which only
/// costs descriptors. Thread-safe.
void close_apart(std::vector<base::unique_fd> files) noexcept;

}  // namespace gpushm::succession
