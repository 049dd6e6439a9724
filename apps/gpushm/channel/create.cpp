// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <cstdint>
#include <optional>
#include <string>

#include "apps/gpushm/channel/channel_options.hpp"
#include "apps/gpushm/channel/commands.hpp"
#include "apps/gpushm/channel/shape.hpp"
#include "apps/gpushm/command.hpp"
#include "apps/gpushm/exit_status.hpp"
#include "apps/gpushm/json_output.hpp"
#include "apps/gpushm/options.hpp"
#include "apps/gpushm/output.hpp"
#include "apps/gpushm/segment/connect.hpp"
#include "apps/gpushm/segment/describe.hpp"
#include "base/text/text_layout.hpp"
#include "gpushm/channel.h"

namespace gpushm::cli {

namespace {

struct channel_create_arguments {
  connection_arguments connection;
  std::string name;
  std::uint32_t slots = 4;
  std::optional<std::uint64_t> slot_bytes;
  std::string device = "auto";
  bool huge_pages = false;
};

void add_channel_create_arguments(CLI::App& app, channel_create_arguments& arguments) {
  add_channel_name(app, arguments.name);
  add_text(app, "--slots", "N", "Number of slots, 1 to 1024 (default: 4)", [&](const auto& text) {
    arguments.slots = slots_in(text);
  });
  add_size(app, "--slot-size", "Size of each slot, such as 4MiB", [&](std::uint64_t bytes) {
    arguments.slot_bytes = slot_size(bytes);
  })->required();
  add_device(app, "--device", channel_devices, arguments.device);
  app.add_flag("--huge-pages", arguments.huge_pages, "Allocate host memory in 2 MiB pages");
  add_connection(app, arguments.connection);
}

int run_channel_create(const channel_create_arguments& arguments) {
  check_is_own(arguments.name, "create channel");
  if (arguments.name.size() > GPUSHM_MAX_CHANNEL_NAME_BYTES) {
    throw usage_error(errc::invalid_argument,
                      "create channel",
                      arguments.name,
                      fmt::format("its name has {} bytes", arguments.name.size()),
                      fmt::format("at most {} are allowed", GPUSHM_MAX_CHANNEL_NAME_BYTES));
  }
  const channel_shape shape{arguments.slots, arguments.slot_bytes.value_or(0)};
  client broker = connect(arguments.connection);
  create_options options;
  options.size_bytes = segment_bytes(shape);
  options.device = arguments.device;
  options.lifetime = lifetime::persistent;
  options.huge_pages = arguments.huge_pages;
  segment created = broker.create(arguments.name, options);
  created.publish(to_metadata(shape));
  if (arguments.connection.json) {
    json document = to_json(created);
    document["requested_device"] = arguments.device;
    document["slots"] = shape.slots;
    document["slot_bytes"] = shape.slot_bytes;
    print_json(json{{"created", std::move(document)}});
    return exit_ok;
  }
  print_line(fmt::format("created channel \"{}\"", created.name()));
  fields lines = segment_fields(created);
  lines.insert(lines.begin(), {"slots", shape_text(shape)});
  print(base::fields_text(lines, 2));
  return exit_ok;
}

}  // namespace

void add_channel_create(command_list& commands) {
  add_command<channel_create_arguments>(commands,
                                        "create",
                                        "Make a channel's memory, which outlives its producers",
                                        add_channel_create_arguments,
                                        run_channel_create);
}

}  // namespace gpushm::cli
