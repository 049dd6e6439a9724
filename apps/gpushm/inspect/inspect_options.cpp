// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/inspect/inspect_options.hpp"

#include <CLI/CLI.hpp>

#include "apps/gpushm/options.hpp"

namespace gpushm::cli {

void add_from(CLI::App& app, std::string& recording) {
  app.add_option(
         "--from", recording, "Use a machine recorded with \"doctor --json\" instead of this one")
      ->type_name("FILE");
}

void add_driver_timeout(CLI::App& app, std::chrono::milliseconds& timeout) {
  add_duration(app,
               "--driver-timeout",
               "Maximum time to wait for the driver (default: 30s)",
               [&](auto value) { timeout = value; });
}

void add_socket(CLI::App& app, std::string& socket) {
  app.add_option("--socket", socket, "The broker's socket (default: as for all commands)")
      ->type_name("PATH");
}

void add_ipc_library(CLI::App& app, std::string& path) {
  app.add_option(
         "--ipc-library", path, "The libgpushm-ipc.so to preload (default: the installed one)")
      ->type_name("PATH");
}

}  // namespace gpushm::cli
