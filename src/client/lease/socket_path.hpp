// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "base/files/domain_places.hpp"

namespace gpushm::client_detail {

/// Returns the socket for `connect` without a path: `$GPUSHM_SOCKET`, else the empty string, which
/// is for `machine_socket`, then `own_sockets`.
[[nodiscard]] std::string chosen_socket_path();

/// Returns the socket of the only domain under `domains`, else the default domain's. Throws
/// `errc::ambiguous_domain` for several domains.
[[nodiscard]] std::string machine_socket(const std::string& domains = base::machine_domains);

/// A user's own brokers.
struct own_sockets {
  std::vector<std::string> paths;  ///< in the order of the search, one for each place with domains
  std::string expected;            ///< where `gpushm serve` would listen; empty: it would refuse
  std::string refused;             ///< why places are not used, as sentences; empty: all are
};

/// Finds the sockets of the only domain, else of the only domain with a broker, in each of
/// `places`. Throws `errc::ambiguous_domain` for several domains with brokers.
[[nodiscard]] own_sockets find_own_sockets(
    const std::vector<base::domains_place>& places = base::user_domains());

/// Where a relative path leads now: a client connects there again, and its tickets name it, even
/// after the process has changed its working directory. Keeps a relative path whose absolute form
/// does not fit into an address.
[[nodiscard]] std::string absolute_socket_path(const std::string& path);

}  // namespace gpushm::client_detail
