// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/un.h>

#include <cstddef>
#include <string>

namespace gpushm::kubelet {

inline constexpr std::size_t max_socket_path_bytes = sizeof(sockaddr_un::sun_path) - 1;

/// True if no process listens on the stream socket `path`, which is also the case between its bind
/// and listen. False if unknown (full queue, no permission). Does not block.
[[nodiscard]] bool has_no_listener(const std::string& path);

}  // namespace gpushm::kubelet
