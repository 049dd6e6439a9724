// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tests/deploy/manifest.hpp"

namespace gpushm_tests {

/// What the Pod Security standard `restricted` (of Kubernetes 1.36) refuses of a pod, a line for
/// each: "FILE:LINE:COLUMN: hostPID". None: it may run in a namespace with that label.
[[nodiscard]] std::vector<std::string> not_restricted(const manifest& pod);

}  // namespace gpushm_tests
