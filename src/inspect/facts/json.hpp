// SPDX-License-Identifier: Apache-2.0
#pragma once

// Views and facts as JSON: keys are the members' names, absent optionals are null. Views can also
// be read, for recordings; missing keys keep their defaults. Reading throws
// nlohmann::json::exception for a value of the wrong type.

#include <nlohmann/json_fwd.hpp>

#include "inspect/facts/driver_view.hpp"
#include "inspect/facts/facts.hpp"

namespace gpushm::inspect {

void to_json(nlohmann::json& to, const node_holder& from);
void from_json(const nlohmann::json& from, node_holder& to);
void to_json(nlohmann::json& to, const driver_view& from);
void from_json(const nlohmann::json& from, driver_view& to);
void to_json(nlohmann::json& to, const facts& from);
void to_json(nlohmann::json& to, const file_status& from);
void from_json(const nlohmann::json& from, file_status& to);

}  // namespace gpushm::inspect
