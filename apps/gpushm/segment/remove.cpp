// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/commands.hpp"
#include "apps/gpushm/segment/each_name.hpp"

namespace gpushm::cli {

int run_remove(const remove_arguments& arguments) {
  return for_each_name(arguments.connection,
                       arguments.names,
                       "removed",
                       [](client& broker, const std::string& name) { broker.remove(name); });
}

}  // namespace gpushm::cli
