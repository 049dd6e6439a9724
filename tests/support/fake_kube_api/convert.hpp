// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "tests/support/fake_kube_api/paths.hpp"

namespace gpushm::testing {

/// Objects are stored in the newest version. v1beta2 has the same fields; v1beta1 has a device's
/// fields under `basic`, and a claim request's fields beside its name.
void to_stored(const object_path& path, nlohmann::json& object);
void from_stored(const object_path& path, nlohmann::json& object);

/// Removes the fields of a stored object that a server of Kubernetes 1.36 does not have. Such a
/// server drops them on writes, and does not refuse them (fieldValidation: Warn).
void drop_unknown_fields(const object_path& path, nlohmann::json& object);

}  // namespace gpushm::testing
