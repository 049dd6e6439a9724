// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cdi/document/document.hpp"

namespace gpushm::cdi {

/// The kind of devices that lead a container to a broker.
inline constexpr std::string_view share_kind = "gpushm.dev/share";

/// Where clients look for domains (client/socket_path.hpp).
inline constexpr std::string_view domains_inside = "/run/gpushm/d";

/// A device for each domain, which mounts the domain's directory, a directory of `on_host`, where
/// clients look for it. Read-only: connecting needs no more, and nobody in a container can put
/// another socket there. The directory and not the socket, so that a restarted broker is found
/// again. Throws `error` (invalid_argument) for a domain whose name cannot name a device.
[[nodiscard]] document share_document(const std::vector<std::string>& domains,
                                      const std::string& on_host = std::string(domains_inside));

}  // namespace gpushm::cdi
