// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/un.h>

#include <cstddef>
#include <string>

namespace gpushm::kubelet {

inline constexpr std::size_t longest_socket_path = sizeof(sockaddr_un::sun_path) - 1;

/// Certain that nobody listens at the stream socket `path`: a full queue, or no right to ask, is
/// somebody. Nobody listens for a moment at one that is being made. Does not block.
[[nodiscard]] bool nobody_answers(const std::string& path);

}  // namespace gpushm::kubelet
