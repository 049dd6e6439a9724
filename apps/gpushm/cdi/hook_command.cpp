// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm-cdi-hook/run_hook.hpp"
#include "apps/gpushm/cdi/commands.hpp"
#include "apps/gpushm/command.hpp"

namespace gpushm::cli {

namespace {

struct hook_arguments {
  std::vector<std::string> words;  ///< the hook's name, then its options
};

void add_hook_arguments(CLI::App& app, hook_arguments& out) {
  // Passes all options to the hook, including unknown ones.
  app.prefix_command();
  app.parse_complete_callback([&app, &out] { out.words = app.remaining(); });
  app.footer(
      "NAME is create-symlinks, update-ldcache, enable-cuda-compat, "
      "disable-device-node-modification or preload.");
}

int run_hook_command(const hook_arguments& arguments) {
  return cdi_hook::run_hook(arguments.words);
}

}  // namespace

void add_cdi_hook(command_list& commands) {
  add_command<hook_arguments>(commands,
                              "hook",
                              "Run a hook of a document (called by container engines)",
                              add_hook_arguments,
                              run_hook_command);
}

}  // namespace gpushm::cli
