// SPDX-License-Identifier: Apache-2.0
#include "inspect/json.hpp"
#include "inspect_commands.hpp"
#include "json_output.hpp"

namespace gpushm::cli {

int run_probe_driver(const probe_driver_arguments& /*arguments*/) {
  print_json(json(nlohmann::json(inspect::look_at_driver())));
  return 0;
}

}  // namespace gpushm::cli
