// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/un.h>

#include <cstddef>
#include <string>

namespace gpushm::kubelet {

inline constexpr std::size_t longest_socket_path = sizeof(sockaddr_un::sun_path) - 1;

/// True when no process listens on the stream socket `path`, also for a moment while a socket is
/// being created. False when unsure: full queue, no permission. Does not block.
[[nodiscard]] bool has_no_listener(const std::string& path);

}  // namespace gpushm::kubelet
