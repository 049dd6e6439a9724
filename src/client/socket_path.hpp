// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace gpushm::detail {

/// Returns the socket for `connect` without a path: `$GPUSHM_SOCKET`, else the socket of the only
/// domain under `domains` (/run/gpushm/d), else the default domain's. Throws
/// `errc::ambiguous_domain` for several domains.
[[nodiscard]] std::string default_socket_path(const std::string& domains = "/run/gpushm/d");

/// Where a relative path leads now: a client connects there again, and its tickets name it, after
/// the process has changed its working directory, too. Keeps a relative path whose absolute form
/// does not fit into an address.
[[nodiscard]] std::string absolute_socket_path(const std::string& path);

}  // namespace gpushm::detail
