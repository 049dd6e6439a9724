// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/commands.hpp"
#include "apps/gpushm/node/operator.hpp"
#include "apps/gpushm/segment/each_name.hpp"

namespace gpushm::cli {

int run_remove(const remove_arguments& arguments) {
  if (arguments.unheld) {
    return run_remove_unheld(arguments);
  }
  if (arguments.names.empty()) {
    throw usage_error(errc::invalid_argument,
                      "remove",
                      {},
                      "there is no name of a segment",
                      "name segments, or use --unheld");
  }
  return for_each_name(arguments.connection,
                       arguments.names,
                       "removed",
                       [](client& broker, const std::string& name) { broker.remove(name); });
}

}  // namespace gpushm::cli
