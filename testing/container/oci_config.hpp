// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "container/options.hpp"

namespace gpushm_testing {

/// The config.json of an OCI bundle (runtime specification 1.0) whose root is "rootfs".
/// `cgroups_path` is absolute and without systemd's syntax; runc takes it on cgroup v1 and v2.
/// Throws `harness_error` when a device node is not one.
[[nodiscard]] nlohmann::json oci_config(const container_options& options,
                                        const std::string& cgroups_path);

}  // namespace gpushm_testing
