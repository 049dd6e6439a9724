// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "protocol/transport/credentials.hpp"

namespace gpushm::transport {

/// The principal that a peer's usage is charged to; `core::principal` has the same fields.
struct peer_principal {
  std::string key;
  bool vouched_for = true;  ///< false: only the process itself is known, and a process can fork
};

/// The tenant named in the text of a /proc/PID/cgroup file: "pod UID", "container ID" (its first 16
/// digits) or "uid N" (a user slice of systemd, below which that user may create groups with any
/// name). Empty if the text names none. The outermost name applies, because the tenant may have
/// created the groups below it.
[[nodiscard]] std::optional<std::string> tenant_of_cgroups(std::string_view text);

/// Pod, container or user by the peer's control group, if this process sees the peer; otherwise its
/// uid, if known; otherwise the process itself by its pidfd, otherwise one name for all. Reads
/// /proc; does not block on the peer.
[[nodiscard]] peer_principal principal_of(const peer_credentials& peer, int pidfd);

/// True if the peer is known to be in no other container than this process: it has the PID
/// namespace of this process or the machine's, and its control group names no other pod or
/// container. False if that is not so, or the kernel does not say (without a common PID namespace:
/// before Linux 6.11, or for a peer of another uid). Reads /proc; does not block on the peer.
[[nodiscard]] bool is_in_no_other_container(const peer_credentials& peer, int pidfd);

}  // namespace gpushm::transport
