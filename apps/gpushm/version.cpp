// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/command.hpp"
#include "apps/gpushm/commands.hpp"
#include "apps/gpushm/exit_status.hpp"
#include "apps/gpushm/json_output.hpp"
#include "apps/gpushm/options.hpp"
#include "apps/gpushm/output.hpp"

namespace gpushm::cli {

namespace {

struct version_arguments {
  bool json = false;
};

void add_version_arguments(CLI::App& app, version_arguments& arguments) {
  add_json(app, arguments.json);
}

int run_version(const version_arguments& arguments) {
  if (arguments.json) {
    print_json(json{{"version", GPUSHM_VERSION}});
  } else {
    print_line(std::string("gpushm ") + GPUSHM_VERSION);
  }
  return exit_ok;
}

}  // namespace

void add_version(command_list& commands) {
  add_command<version_arguments>(
      commands, "version", "Print the version", add_version_arguments, run_version);
}

}  // namespace gpushm::cli
