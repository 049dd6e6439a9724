// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>

#include "testing/fake_kube_api/paths.hpp"

namespace gpushm::testing {

/// Objects are kept as the newest version has them. v1beta2 has the same fields; v1beta1 puts what
/// a device has under `basic`, and what a request of a claim asks for beside its name.
void to_stored(const object_path& from, nlohmann::json& object);
void from_stored(const object_path& to, nlohmann::json& object);

/// What a server of Kubernetes 1.36 does not know of an object as it is stored is dropped when it
/// is written, not refused (fieldValidation: Warn).
void drop_unknown_fields(const object_path& of, nlohmann::json& object);

}  // namespace gpushm::testing
