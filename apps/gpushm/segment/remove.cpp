// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/command.hpp"
#include "apps/gpushm/commands.hpp"
#include "apps/gpushm/exit_status.hpp"
#include "apps/gpushm/node/operator.hpp"
#include "apps/gpushm/options.hpp"
#include "apps/gpushm/segment/each_name.hpp"
#include "gpushm/client.hpp"

namespace gpushm::cli {

namespace {

void add_remove_arguments(CLI::App& app, remove_arguments& arguments) {
  auto* const names = app.add_option("NAME", arguments.names, "Names of segments")->type_name("");
  auto* const unheld =
      app.add_flag("--unheld",
                   arguments.unheld,
                   "For operators of gpushm-brokerd: persistent segments that no process "
                   "has open, and that none opens meanwhile")
          ->excludes(names);
  app.add_option(
         "--principal", arguments.principal, "Only those of this one in `ls --by principal`")
      ->needs(unheld)
      ->type_name("TEXT");
  app.add_flag("--dry-run", arguments.dry_run, "Only show what would be removed")->needs(unheld);
  for (CLI::Option* const each : add_node(app, arguments.node)) {
    each->needs(unheld);
  }
  add_connection(app, arguments.connection);
}

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

}  // namespace

void add_remove(command_list& commands) {
  add_command<remove_arguments>(commands,
                                "rm",
                                "Remove segments; processes that have one open keep the memory",
                                add_remove_arguments,
                                run_remove);
}

}  // namespace gpushm::cli
