// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/support/oci/runtime.hpp"

namespace gpushm_testing {

/// The container runtime: `$GPUSHM_RUNC`, else runc in `$PATH`; nothing when there is none.
[[nodiscard]] std::optional<gpushm::app::oci::runtime> find_runc();

/// Cgroups of containers whose id begins with `prefix`, in any hierarchy. Cgroups of other tests
/// may come and go meanwhile.
[[nodiscard]] std::vector<std::string> cgroups_named(const std::string& prefix);

/// Why containers cannot be run here, for GTEST_SKIP: not root, no runc, or what runc said when it
/// was tried with an empty program. Nothing when they can. Tried once a process; takes up to a few
/// seconds. `in_user_namespace` asks for containers with one.
[[nodiscard]] std::optional<std::string> why_no_containers(bool in_user_namespace = false);

}  // namespace gpushm_testing
