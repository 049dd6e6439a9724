// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "apps/support/oci/options.hpp"

namespace gpushm::app::oci {

/// The config.json of an OCI bundle (runtime specification 1.0) whose root is "rootfs".
/// `cgroups_path` is absolute and not in systemd's syntax; runc and crun accept it on cgroup v1 and
/// v2. Throws `error` (invalid_argument) if a device node is not a character device.
[[nodiscard]] nlohmann::json config(const container_options& options,
                                    const std::string& cgroups_path);

/// The names of the capabilities in a set as runtimes spell them, bit 0 first: "CAP_CHOWN". Omits
/// bits without a name in this version. Pure.
[[nodiscard]] std::vector<std::string> capability_names(std::uint64_t set);

/// The bounding set of the calling thread: the upper bound for a container's capabilities.
[[nodiscard]] std::uint64_t bounding_set() noexcept;

}  // namespace gpushm::app::oci
