// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/support/oci/options.hpp"

namespace gpushm::app::oci {

/// The config.json of an OCI bundle (runtime specification 1.0) whose root is "rootfs".
/// `cgroups_path` is absolute and without systemd's syntax; runc and crun take it on cgroup v1 and
/// v2. Throws `error` (invalid_argument) when a device node is none.
[[nodiscard]] nlohmann::json config(const container_options& options,
                                    const std::string& cgroups_path);

/// The names that runtimes know of the capabilities in a set, bit 0 first: "CAP_CHOWN". Bits that
/// this version has no name for are left out. Pure.
[[nodiscard]] std::vector<std::string> capability_names(std::uint64_t set);

/// The bounding set of the calling thread: nobody can give a container more.
[[nodiscard]] std::uint64_t bounding_set() noexcept;

}  // namespace gpushm::app::oci
