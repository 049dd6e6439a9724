// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/unique_fd.hpp"

namespace gpushm::transport {

/// Who is at the other end, as this process's namespaces name it. In a user namespace that cannot
/// name the peer the kernel says pid 0 and the overflow uid: then the flag is false and the number
/// is no key.
struct peer_credentials {
  std::int32_t pid = 0;  ///< 0: unknown
  std::uint32_t uid = 0;
  std::uint32_t gid = 0;
  bool uid_known = false;
};

[[nodiscard]] peer_credentials peer_of(int socket);

/// True where the kernel itself gives a descriptor of a peer's process (SO_PEERPIDFD, Linux 6.5),
/// whatever PID namespace that is in.
[[nodiscard]] bool kernel_names_peers() noexcept;

/// A descriptor that becomes readable when the peer's process dies, even if a forked child keeps
/// its socket open. Empty when the kernel cannot give one (not visible, too old, or already dead).
[[nodiscard]] base::unique_fd pidfd_of_peer(int socket, const peer_credentials& peer) noexcept;

}  // namespace gpushm::transport
