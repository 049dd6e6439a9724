// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tests/deploy/manifest.hpp"

namespace gpushm_tests {

/// Why kustomizations cannot be rendered here, for GTEST_SKIP; nothing when they can.
[[nodiscard]] std::optional<std::string> why_no_kubectl();

/// What `kubectl kustomize` makes of a directory of the source tree. Offline. Throws
/// `std::runtime_error` with what kubectl said.
[[nodiscard]] std::vector<manifest> rendered(const std::string& directory);

/// Of some objects the one of this kind; throws unless there is exactly one.
[[nodiscard]] const manifest& the_one(const std::vector<manifest>& objects, std::string_view kind);

/// Every directory below deploy/ with a kustomization.yaml, relative to the source tree, sorted.
[[nodiscard]] std::vector<std::string> kustomizations();

}  // namespace gpushm_tests
