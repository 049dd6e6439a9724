// SPDX-License-Identifier: Apache-2.0
#include "inspect/doctor/json.hpp"

#include <nlohmann/json.hpp>

namespace gpushm::inspect {

using nlohmann::json;

void to_json(json& to, const check& from) {
  to = {{"id", from.id},
        {"section", from.section},
        {"verdict", to_string(from.result)},
        {"seen", from.seen},
        {"why", from.why},
        {"remedy", from.remedy},
        {"follows", from.follows}};
}

}  // namespace gpushm::inspect
