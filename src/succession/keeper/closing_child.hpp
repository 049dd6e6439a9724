// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "base/files/unique_fd.hpp"

namespace gpushm::keeper {

/// Whether the close of a descriptor that the program has removed may block: a socket with unread
/// packets, in which a member may have sent one that lingers. Does not block. Sets SO_PASSCRED of a
/// socket that is shut down for reading.
[[nodiscard]] bool may_block_when_closed(int descriptor) noexcept;

/// Closes descriptors that may block when they are closed last. That is done by the exit of a child
/// with a copy of this process's table: SO_LINGER has no effect on a process that exits, and if it
/// waits for something else, this process does not. Waits for the child's start, 5 s at most. If
/// there is no child (no process or descriptor is left), they are closed here.
void close_in_child(std::vector<base::unique_fd> descriptors) noexcept;

}  // namespace gpushm::keeper
