// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace gpushm::cli {

/// Sends `state` ("READY=1") to systemd, or whoever set $NOTIFY_SOCKET; nothing when it is not set.
/// Does not block. False when it is set and nobody took the message.
[[nodiscard]] bool notify_service_manager(std::string_view state) noexcept;

/// Writes a line feed to `fd` and closes it. Throws `errc::system_error`.
void notify_ready_fd(int fd);

}  // namespace gpushm::cli
