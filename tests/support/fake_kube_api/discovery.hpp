// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tests/support/fake_kube_api/reply.hpp"

namespace gpushm::testing {

/// Replies to /version, /api, /apis and the paths below them down to the lists of resources;
/// nullopt for other paths. `versions`: of resource.k8s.io, the preferred one first.
[[nodiscard]] std::optional<reply> answer_discovery(const std::string& path,
                                                    const std::vector<std::string>& versions);

}  // namespace gpushm::testing
