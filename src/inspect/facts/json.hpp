// SPDX-License-Identifier: Apache-2.0
#pragma once

// Views and facts as JSON: keys are the members' names, absent optionals are null. Views can also
// be read, for recordings; missing keys keep their defaults. Reading throws
// nlohmann::json::exception for a value of the wrong type.

#include <nlohmann/json_fwd.hpp>

#include "inspect/facts/driver_view.hpp"
#include "inspect/facts/facts.hpp"

namespace gpushm::inspect {

void to_json(nlohmann::json& document, const node_holder& holder);
void from_json(const nlohmann::json& document, node_holder& holder);
void to_json(nlohmann::json& document, const driver_view& driver);
void from_json(const nlohmann::json& document, driver_view& driver);
void to_json(nlohmann::json& document, const facts& facts);
void to_json(nlohmann::json& document, const file_status& status);
void from_json(const nlohmann::json& document, file_status& status);

}  // namespace gpushm::inspect
