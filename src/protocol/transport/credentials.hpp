// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/files/unique_fd.hpp"

namespace gpushm::transport {

/// The credentials of the peer, in this process's namespaces. In a user namespace without a mapping
/// for the peer, the kernel reports pid 0 and the overflow uid: then the flag is false and the uid
/// must not be used as a key.
struct peer_credentials {
  std::int32_t pid = 0;  ///< 0: unknown
  std::uint32_t uid = 0;
  std::uint32_t gid = 0;
  bool uid_known = false;
};

[[nodiscard]] peer_credentials peer_of(int socket);

/// True if the kernel provides a descriptor of a peer's process (SO_PEERPIDFD, Linux 6.5), in any
/// PID namespace.
[[nodiscard]] bool kernel_names_peers() noexcept;

/// A descriptor that becomes readable when the peer's process dies, even if a forked child keeps
/// its socket open. Empty if the kernel cannot provide one (not visible, too old, or already dead).
[[nodiscard]] base::unique_fd pidfd_of_peer(int socket, const peer_credentials& peer) noexcept;

}  // namespace gpushm::transport
