// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "tests/support/fake_kube_api/fake_kube_api.hpp"
#include "tests/support/fake_kube_api/http_server.hpp"
#include "tests/support/fake_kube_api/paths.hpp"

namespace gpushm::testing {

/// The message with which deploy/kustomize/with-dra/admission-policy.yaml denies a request with an
/// agent's token; empty if it admits it. `object` is null for a deletion, `before` for a creation;
/// both as stored.
///
/// tests/deploy/admission_policy_test.cpp tests this function and the policy with the same
/// requests.
[[nodiscard]] std::string denial(const fake_kube_options& options,
                                 const object_path& path,
                                 const http_request& request,
                                 const nlohmann::json& object,
                                 const nlohmann::json& before);

/// As `denial`, for a request by the agent of `node` (empty: its token names no node), without the
/// text up to "denied request: ".
[[nodiscard]] std::string policy_violation(const std::string& node,
                                           const nlohmann::json& object,
                                           const nlohmann::json& before);

}  // namespace gpushm::testing
