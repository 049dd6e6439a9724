// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <string>

#include "apps/gpushm/command.hpp"
#include "apps/gpushm/commands.hpp"
#include "apps/gpushm/options.hpp"
#include "apps/gpushm/segment/connect.hpp"
#include "apps/gpushm/segment/opened.hpp"
#include "gpushm/exchange.hpp"

namespace gpushm::cli {

namespace {

struct import_arguments {
  std::string file;
  import_options options;
  use_arguments use;
  bool json = false;
};

void add_import_arguments(CLI::App& app, import_arguments& arguments) {
  app.add_option("--file", arguments.file, "File of a live exporter")
      ->required()
      ->type_name("FILE");
  add_duration(
      app, "--timeout", "How long to wait for the file (default: do not wait)", [&](auto value) {
        arguments.options.timeout = value;
      });
  add_device(app,
             "--device",
             "GPU that will access it (default: the memory's GPU)",
             arguments.options.device);
  add_access(app, arguments.options.access);
  add_use(app, arguments.use, arguments.json);
  add_json(app, arguments.json);
}

/// Waiting does not turn another kind of file into a regular one.
void check_regular(const std::string& file) {
  std::error_code failed;
  const auto status = std::filesystem::status(file, failed);
  if (!failed && std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    throw error(errc::invalid_argument,
                "import",
                file,
                "it is not a regular file, so no export created it",
                "give the path that gpushm export --file was given");
  }
}

int run_import(const import_arguments& arguments) {
  print_warnings();
  check_regular(arguments.file);
  const segment imported = import_file(arguments.file, arguments.options);
  return use_opened(imported, arguments.use, {"imported", arguments.file, true, arguments.json});
}

}  // namespace

void add_import(command_list& commands) {
  add_command<import_arguments>(commands,
                                "import",
                                "Map the memory that a file refers to; checksum or save its bytes",
                                add_import_arguments,
                                run_import);
}

}  // namespace gpushm::cli
