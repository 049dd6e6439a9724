// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "inspect/topology/topology.hpp"

namespace gpushm::inspect {

/// Keys are the names of the members. Reading throws nlohmann::json::exception for a key that is
/// missing or a value of the wrong type.
void to_json(nlohmann::json& to, const measured_pair& from);
void from_json(const nlohmann::json& from, measured_pair& to);

}  // namespace gpushm::inspect
