// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace gpushm::cli {

/// Sends `state` ("READY=1") to $NOTIFY_SOCKET, for instance systemd's. Does not block. Returns
/// false if the variable is set and the message could not be delivered.
[[nodiscard]] bool notify_service_manager(std::string_view state) noexcept;

/// Writes a line feed to `fd` and closes it. Throws `error` with `errc::system_error`.
void notify_ready_fd(int fd);

}  // namespace gpushm::cli
