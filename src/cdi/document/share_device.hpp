// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cdi/document/document.hpp"

namespace gpushm::cdi {

/// The kind of the devices that connect a container to a broker.
inline constexpr std::string_view share_kind = "gpushm.dev/share";

/// Where clients look for domains (client/socket_path.hpp).
inline constexpr std::string_view domains_inside = "/run/gpushm/d";

/// A device for each domain. It mounts the domain's directory below `on_host` at the path where
/// clients look for it: read-only, which suffices to connect and prevents containers from replacing
/// the socket; the directory instead of the socket, so that clients find a restarted broker. Throws
/// `error` (invalid_argument) for a domain whose name is not a valid device name.
[[nodiscard]] document share_document(const std::vector<std::string>& domains,
                                      const std::string& on_host = std::string(domains_inside));

}  // namespace gpushm::cdi
