// SPDX-License-Identifier: Apache-2.0
#include "gpushm/error.hpp"
#include "inspect_commands.hpp"

namespace gpushm::cli {

int run_probe_driver(const probe_driver_arguments& /*arguments*/) {
  throw error(errc::system_error, "run command", "probe_driver", "this build lacks it", {});
}

}  // namespace gpushm::cli
