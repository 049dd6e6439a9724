// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/command.hpp"
#include "apps/gpushm/commands.hpp"
#include "apps/gpushm/json_output.hpp"
#include "inspect/facts/json.hpp"

namespace gpushm::cli {

namespace {

/// Queries the driver and prints a `driver_view` as JSON. `doctor` and others run it as a child,
/// because a broken driver can crash the calling process.
struct probe_driver_arguments {};

void add_probe_driver_arguments(CLI::App& app, probe_driver_arguments& /*arguments*/) {
  app.group("");
}

int run_probe_driver(const probe_driver_arguments& /*arguments*/) {
  print_json(json(nlohmann::json(inspect::query_driver())));
  return 0;
}

}  // namespace

void add_probe_driver(command_list& commands) {
  add_command<probe_driver_arguments>(
      commands, "probe-driver", "", add_probe_driver_arguments, run_probe_driver);
}

}  // namespace gpushm::cli
