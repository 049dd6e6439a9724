// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tests/deploy/manifest.hpp"

namespace gpushm_tests {

/// The reason why kustomizations cannot be rendered here, for GTEST_SKIP; nullopt if they can.
[[nodiscard]] std::optional<std::string> why_no_kubectl();

/// The output of `kubectl kustomize` for a directory of the source tree. Works offline. Throws
/// `std::runtime_error` with kubectl's message.
[[nodiscard]] std::vector<manifest> rendered(const std::string& directory);

/// Throws `std::runtime_error` if there is none.
[[nodiscard]] const manifest& object(const std::vector<manifest>& objects,
                                     std::string_view kind,
                                     std::string_view name);
/// The object of this kind; throws unless there is exactly one.
[[nodiscard]] const manifest& only_object(const std::vector<manifest>& objects,
                                          std::string_view kind);

/// Every directory below deploy/ with a kustomization.yaml, relative to the source tree, sorted.
[[nodiscard]] std::vector<std::string> kustomizations();

}  // namespace gpushm_tests
