// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "testing/fake_kube_api/fake_kube_api.hpp"
#include "testing/fake_kube_api/http_server.hpp"
#include "testing/fake_kube_api/paths.hpp"

namespace gpushm::testing {

/// What deploy/kustomize/with-dra/admission-policy.yaml says against a request of an agent's token;
/// empty: it is admitted. `object` is null of a deletion, `before` of a creation; both as stored.
///
/// tests/deploy/admission_policy_test.cpp holds both against the same requests.
[[nodiscard]] std::string denied(const fake_kube_options& options,
                                 const object_path& path,
                                 const http_request& request,
                                 const nlohmann::json& object,
                                 const nlohmann::json& before);

/// The same of a request by the agent of `node` ("": its token names none); without "denied
/// request".
[[nodiscard]] std::string policy_says(const std::string& node,
                                      const nlohmann::json& object,
                                      const nlohmann::json& before);

}  // namespace gpushm::testing
