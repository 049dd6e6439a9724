// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "containers/cdi/document/document.hpp"

namespace gpushm::cdi {

/// The kind of the devices that connect a container to a broker.
inline constexpr std::string_view share_kind = "gpushm.dev/share";

/// Where clients look for domains (client/lease/socket_path.hpp).
inline constexpr std::string_view domains_inside = "/run/gpushm/d";

/// The kind of the devices that also make CUDA IPC of unchanged programs work between containers.
inline constexpr std::string_view ipc_kind = "gpushm.dev/ipc";

/// Where the preloaded library and libgpushm are in a container.
inline constexpr std::string_view ipc_inside = "/run/gpushm/ipc";
inline constexpr std::string_view ipc_library = "libgpushm-ipc.so";
inline constexpr std::string_view client_library = "libgpushm.so.1";

/// What containers need for CUDA IPC of unchanged programs, on the host.
struct ipc_files {
  std::string libraries;  ///< the directory of `ipc_library` and `client_library`
  std::string hook_program;
  bool operator==(const ipc_files&) const = default;
};

/// The edits that preload the library: a mount of its directory, and the hook `preload`.
[[nodiscard]] edits preload_edits(const ipc_files& files);
/// The variable that selects a domain for the preloaded library.
[[nodiscard]] std::string ipc_domain_variable(std::string_view domain);

/// A device for each domain. It mounts the domain's directory below `on_host` at the path where
/// clients look for it: read-only, which suffices to connect and prevents containers from replacing
/// the socket; the directory instead of the socket, so that clients find a restarted broker. Throws
/// `error` (invalid_argument) for a domain whose name is not a valid device name.
[[nodiscard]] document share_document(const std::vector<std::string>& domains,
                                      const std::string& on_host = std::string(domains_inside));
/// The same, for `kind`, with devices that also preload the library.
[[nodiscard]] document ipc_document(const std::vector<std::string>& domains,
                                    const ipc_files& files,
                                    const std::string& on_host = std::string(domains_inside),
                                    std::string_view kind = ipc_kind);

}  // namespace gpushm::cdi
