// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include "apps/gpushm/command.hpp"
#include "apps/gpushm/commands.hpp"
#include "apps/gpushm/options.hpp"
#include "apps/gpushm/segment/each_name.hpp"
#include "gpushm/client.hpp"

namespace gpushm::cli {

namespace {

struct release_arguments {
  connection_arguments connection;
  std::vector<std::string> names;
  bool unfenced = false;
};

void add_release_arguments(CLI::App& app, release_arguments& arguments) {
  app.add_option("NAME", arguments.names, "Names of segments")->required()->type_name("");
  app.add_flag("--unfenced",
               arguments.unfenced,
               "Required: only you guarantee that the process no longer writes them")
      ->required();
  add_connection(app, arguments.connection);
}

int run_release(const release_arguments& arguments) {
  return for_each_name(arguments.connection,
                       arguments.names,
                       "released",
                       [](client& broker, const std::string& name) { broker.unfence(name); });
}

}  // namespace

void add_release(command_list& commands) {
  add_command<release_arguments>(
      commands,
      "release",
      "End leases that wait for the end of a process that did not disconnect cleanly",
      add_release_arguments,
      run_release);
}

}  // namespace gpushm::cli
