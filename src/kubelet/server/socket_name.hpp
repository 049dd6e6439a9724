// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace gpushm::kubelet {

/// The name of a socket that nobody else has or will have in `directory`:
/// "PREFIX-RESOURCE-PID-UNIQUE.sock". The process number alone would not do: two agents in
/// containers of their own, as in an update, are both number 1. The resource is shortened when the
/// path would be longer than a socket's may be. Thread-safe. Throws `error` (invalid_argument) when
/// `directory` leaves no room.
[[nodiscard]] std::string unique_socket_name(std::string_view directory,
                                             std::string_view prefix,
                                             std::string_view resource);

}  // namespace gpushm::kubelet
