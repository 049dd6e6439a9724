// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/commands.hpp"
#include "apps/gpushm/json_output.hpp"
#include "apps/gpushm/output.hpp"

namespace gpushm::cli {

int run_version(const version_arguments& arguments) {
  if (arguments.json) {
    print_json(json{{"version", GPUSHM_VERSION}});
  } else {
    print_line(std::string("gpushm ") + GPUSHM_VERSION);
  }
  return exit_ok;
}

}  // namespace gpushm::cli
