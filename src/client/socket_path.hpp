// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace gpushm::detail {

/// Where `connect` looks when it is given no path: `$GPUSHM_SOCKET`, else the socket of the one
/// domain under `domains` (/run/gpushm/d), else the default domain's. Throws
/// `errc::ambiguous_domain` for several domains.
[[nodiscard]] std::string default_socket_path(const std::string& domains = "/run/gpushm/d");

}  // namespace gpushm::detail
