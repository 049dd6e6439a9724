// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/support/oci/runtime.hpp"

namespace gpushm_testing {

/// The container runtime: `$GPUSHM_RUNC`, else runc in `$PATH`; nullopt when there is none.
[[nodiscard]] std::optional<gpushm::app::oci::runtime> find_runc();

/// Cgroups of containers whose id begins with `prefix`, in any hierarchy. Cgroups of other tests
/// may be created and removed concurrently.
[[nodiscard]] std::vector<std::string> cgroups_named(const std::string& prefix);

/// The reason why containers cannot run here, for GTEST_SKIP: not root, no runc, or the output of
/// runc when it ran an empty program. Nullopt when they can. Tried once per process; takes up to a
/// few seconds. `in_user_namespace`: for containers with a user namespace.
[[nodiscard]] std::optional<std::string> why_no_containers(bool in_user_namespace = false);

}  // namespace gpushm_testing
