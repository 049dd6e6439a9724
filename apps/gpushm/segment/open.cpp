// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>

#include "apps/gpushm/commands.hpp"
#include "apps/gpushm/segment/near_match.hpp"
#include "apps/gpushm/segment/opened.hpp"

namespace gpushm::cli {

int run_open(const open_arguments& arguments) {
  // One deadline for both waits, for the broker and for the name: a consumer may start first.
  const auto end = std::chrono::steady_clock::now() + arguments.options.timeout;
  client broker = connect(arguments.connection, arguments.options.timeout);
  open_options options = arguments.options;
  options.timeout = std::max(
      std::chrono::milliseconds(0),
      std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now()));
  const segment opened = with_hint(
      arguments.connection, arguments.name, [&] { return broker.open(arguments.name, options); });
  return use_opened(
      opened, arguments.use, {"opened", arguments.name, false, arguments.connection.json});
}

}  // namespace gpushm::cli
