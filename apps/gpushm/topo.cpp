// SPDX-License-Identifier: Apache-2.0
#include "gpushm/error.hpp"
#include "inspect_commands.hpp"

namespace gpushm::cli {

int run_topo(const topo_arguments& /*arguments*/) {
  throw error(errc::system_error, "run command", "topo", "this build lacks it", {});
}

}  // namespace gpushm::cli
