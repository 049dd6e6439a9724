// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace gpushm::device_plugin {

/// Returns a socket name that no other process uses or will use in `directory`:
/// "PREFIX-RESOURCE-PID-UNIQUE.sock". The pid alone is not unique: two agents in different
/// containers, as in an update, both have pid 1. The resource is shortened to fit the limit of a
/// socket's path. Thread-safe. Throws `error` (invalid_argument) when `directory` is too long.
[[nodiscard]] std::string unique_socket_name(std::string_view directory,
                                             std::string_view prefix,
                                             std::string_view resource);

}  // namespace gpushm::device_plugin
