// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/commands.hpp"
#include "apps/gpushm/json_output.hpp"
#include "apps/gpushm/output.hpp"
#include "apps/gpushm/segment/describe.hpp"
#include "apps/gpushm/segment/near_match.hpp"

namespace gpushm::cli {

int run_stat(const stat_arguments& arguments) {
  client broker = connect(arguments.connection);
  const segment_info info =
      with_hint(arguments.connection, arguments.name, [&] { return broker.stat(arguments.name); });
  if (arguments.connection.json) {
    print_json(json{{"segment", to_json(info)}});
  } else {
    print(segment_text(info));
  }
  return exit_ok;
}

}  // namespace gpushm::cli
