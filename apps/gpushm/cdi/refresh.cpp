// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <chrono>

#include "apps/gpushm/cdi/commands.hpp"
#include "apps/gpushm/cdi/generate.hpp"
#include "apps/gpushm/cdi/refresh_watch.hpp"
#include "apps/gpushm/cdi/refresher.hpp"
#include "apps/gpushm/command.hpp"
#include "apps/gpushm/exit_status.hpp"
#include "apps/gpushm/output.hpp"
#include "apps/support/duration.hpp"
#include "apps/support/stop_signal.hpp"

namespace gpushm::cli {

namespace {

struct refresh_arguments {
  generate_arguments document;
  bool create_nodes = true;
  bool watch = false;
  std::chrono::milliseconds interval = std::chrono::seconds(5);
};

// Regenerates at this interval even without a change in /proc, which does not show when a MIG
// instance is replaced by an equal one with another UUID.
constexpr std::chrono::seconds forced_update_interval{60};

void watch(refresher& file, const refresh_arguments& arguments) {
  const app::stop_signal stop;
  driver_watch changes(arguments.document.options.proc_root, file.output_directory());
  auto last_update = std::chrono::steady_clock::now();
  file.try_update();
  if (!file.failed() && !file.withdrawn()) {
    note(fmt::format("watching; {} is up to date", file.output()));
  }
  for (;;) {
    changes.set_directories(file.driver_directories());
    const bool changed = changes.wait(arguments.interval, app::stop_signal::fd());
    if (stop.pending()) {
      return;
    }
    const auto now = std::chrono::steady_clock::now();
    if (changed || file.failed() || now - last_update >= forced_update_interval) {
      last_update = now;
      file.try_update();
    } else {
      file.try_settle();
    }
  }
}

void add_refresh_arguments(CLI::App& app, refresh_arguments& out) {
  app.add_option("-o,--output",
                 out.document.output.path,
                 "The document (default: /var/run/cdi/VENDOR-CLASS.yaml)")
      ->type_name("FILE");
  app.add_flag(
      "--no-create-nodes",
      [&out](std::int64_t) { out.create_nodes = false; },
      "Do not load nvidia-uvm and do not create missing device nodes (default as root: do)");
  app.add_flag("--watch", out.watch, "Keep running until a signal arrives");
  app.add_option_function<std::string>(
         "--interval",
         [&out](const std::string& text) {
           const auto value = app::parse_duration(text);
           if (!value || value->count() == 0) {
             throw CLI::ValidationError(
                 "--interval", fmt::format("\"{}\" is not a duration such as 500ms or 10s", text));
           }
           out.interval = *value;
         },
         "Poll interval for /proc (default: 5s)")
      ->type_name("TIME");
  add_generate_options(app, out.document);
  add_document_format(app, out.document.output);
}

int run_refresh_command(const refresh_arguments& arguments) {
  const bool nvidia = arguments.document.options.source == discover::gpu_vendor::nvidia;
  refresher file(arguments.document, arguments.create_nodes && nvidia);
  if (arguments.watch) {
    watch(file, arguments);
    return exit_ok;
  }
  file.update();
  return exit_ok;
}

}  // namespace

void add_cdi_refresh(command_list& commands) {
  add_command<refresh_arguments>(commands,
                                 "refresh",
                                 "Update the CDI document when the driver or MIG layout changes",
                                 add_refresh_arguments,
                                 run_refresh_command);
}

}  // namespace gpushm::cli
