// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "base/files/unique_fd.hpp"

/// The socket to which a program sends notifications (NOTIFY_SOCKET). Free functions over a
/// descriptor, which the caller owns.
namespace gpushm::keeper {

/// Replaces the socket of a dead keeper; waits up to 3 s for the end of one that has it, which may
/// be dying. The socket is non-blocking and close-on-exec. Throws `error`: address_in_use (a living
/// keeper has it), invalid_argument (too long for an address), system_error.
[[nodiscard]] base::unique_fd bind_notification_socket(const std::string& path);

struct received_notification {
  bool any = false;         ///< false: nothing has arrived
  bool from_user = false;   ///< sent by a process of this user
  bool incomplete = false;  ///< the text was too long, or this process had no room for descriptors
  std::string text;
  std::vector<base::unique_fd> descriptors;  ///< not close-on-exec
};

/// The first notification, which stays in the socket. Does not block. Throws std::bad_alloc only.
[[nodiscard]] received_notification peek_notification(int socket);
/// Removes the first notification. Does not block, apart from a last close of its descriptors.
void remove_notification(int socket) noexcept;

}  // namespace gpushm::keeper
