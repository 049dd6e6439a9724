// SPDX-License-Identifier: Apache-2.0
#include "inspect/doctor/json.hpp"

#include <nlohmann/json.hpp>

namespace gpushm::inspect {

using nlohmann::json;

void to_json(json& document, const check& check) {
  document = {{"id", check.id},
              {"section", check.section},
              {"verdict", to_string(check.result)},
              {"seen", check.seen},
              {"why", check.why},
              {"remedy", check.remedy},
              {"follows", check.follows}};
}

}  // namespace gpushm::inspect
