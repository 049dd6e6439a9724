// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tests/deploy/manifest.hpp"

namespace gpushm_tests {

/// A pod's violations of the Pod Security standard `restricted` (of Kubernetes 1.36), one line
/// each: "FILE:LINE:COLUMN: hostPID". Empty: it may run in a namespace with that label.
[[nodiscard]] std::vector<std::string> not_restricted(const manifest& pod);

}  // namespace gpushm_tests
