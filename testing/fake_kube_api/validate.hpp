// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "testing/fake_kube_api/paths.hpp"

namespace gpushm::testing {

struct field_cause {
  std::string field;
  std::string reason;   ///< "FieldValueRequired"
  std::string message;  ///< "Required value: …"
};

/// What a real server finds wrong with an object as it is stored: names, required fields, limits.
/// `before`: what it replaces, else null.
[[nodiscard]] std::vector<field_cause> validate(const object_path& path,
                                                const nlohmann::json& object,
                                                const nlohmann::json& before);

}  // namespace gpushm::testing
