// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "inspect/topology/topology.hpp"

namespace gpushm::inspect {

/// Keys are the names of the members. Reading throws nlohmann::json::exception for a key that is
/// missing or a value of the wrong type.
void to_json(nlohmann::json& document, const measured_pair& pair);
void from_json(const nlohmann::json& document, measured_pair& pair);

}  // namespace gpushm::inspect
