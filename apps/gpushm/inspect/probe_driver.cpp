// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/inspect/commands.hpp"
#include "apps/gpushm/json_output.hpp"
#include "inspect/facts/json.hpp"

namespace gpushm::cli {

int run_probe_driver(const probe_driver_arguments& /*arguments*/) {
  print_json(json(nlohmann::json(inspect::query_driver())));
  return 0;
}

}  // namespace gpushm::cli
