// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>

#include "apps/gpushm/command.hpp"
#include "apps/gpushm/commands.hpp"
#include "apps/gpushm/options.hpp"
#include "apps/gpushm/segment/connect.hpp"
#include "apps/gpushm/segment/near_match.hpp"
#include "apps/gpushm/segment/opened.hpp"
#include "gpushm/client.hpp"

namespace gpushm::cli {

namespace {

struct open_arguments {
  connection_arguments connection;
  std::string name;
  open_options options;
  use_arguments use;
};

void add_open_arguments(CLI::App& app, open_arguments& arguments) {
  app.add_option("NAME", arguments.name, "Name of the segment")->required()->type_name("");
  add_duration(
      app, "--timeout", "How long to wait for the name (default: do not wait)", [&](auto value) {
        arguments.options.timeout = value;
      });
  add_device(app,
             "--device",
             "GPU that will access it (default: the segment's GPU)",
             arguments.options.device);
  add_access(app, arguments.options.access);
  add_use(app, arguments.use, arguments.connection.json);
  add_size(app, "--expect-size", "Fail unless it has exactly this size", [&](std::uint64_t value) {
    arguments.options.expected_size_bytes = value;
  });
  add_connection(app, arguments.connection);
}

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

}  // namespace

void add_open(command_list& commands) {
  add_command<open_arguments>(
      commands, "open", "Open a segment; checksum or save its bytes", add_open_arguments, run_open);
}

}  // namespace gpushm::cli
