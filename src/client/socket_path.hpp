// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace gpushm::detail {

/// Returns the socket for `connect` without a path: `$GPUSHM_SOCKET`, else the socket of the only
/// domain under `domains` (/run/gpushm/d), else the default domain's. Throws
/// `errc::ambiguous_domain` for several domains.
[[nodiscard]] std::string default_socket_path(const std::string& domains = "/run/gpushm/d");

}  // namespace gpushm::detail
