// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tests/support/fake_kube_api/paths.hpp"

namespace gpushm::testing {

struct field_cause {
  std::string field;
  std::string reason;   ///< "FieldValueRequired"
  std::string message;  ///< "Required value: …"
};

/// The errors that a real server reports for a stored object: names, required fields, limits.
/// `before`: the replaced object, or null.
[[nodiscard]] std::vector<field_cause> validate(const object_path& path,
                                                const nlohmann::json& object,
                                                const nlohmann::json& before);

}  // namespace gpushm::testing
