// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "inspect/doctor/check.hpp"

namespace gpushm::inspect {

/// Keys are the names of the members.
void to_json(nlohmann::json& document, const check& check);

}  // namespace gpushm::inspect
