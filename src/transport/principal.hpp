// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "transport/credentials.hpp"

namespace gpushm::transport {

/// Whom the usage of a peer is charged to; `core::principal` has the same fields.
struct peer_principal {
  std::string key;
  bool vouched_for = true;  ///< false: only the process itself is known, and a process can fork
};

/// The tenant named by the text of a /proc/PID/cgroup file: "pod UID", "container ID" (its first 16
/// digits) or "uid N" (a user's slice of systemd, below which that user may make groups of any
/// name). Empty when the text names none. The outermost name counts, because what is below it may
/// be made by the tenant.
[[nodiscard]] std::optional<std::string> tenant_of_cgroups(std::string_view text);

/// Pod, container or user by the peer's control group, where this process sees the peer; else its
/// uid, where that is known; else the process itself by its pidfd, else one name for all. Reads
/// /proc; does not block on the peer.
[[nodiscard]] peer_principal principal_of(const peer_credentials& peer, int pidfd);

}  // namespace gpushm::transport
