// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "apps/gpushm/command.hpp"
#include "apps/gpushm/commands.hpp"
#include "apps/gpushm/exit_status.hpp"
#include "apps/gpushm/json_output.hpp"
#include "apps/gpushm/options.hpp"
#include "apps/gpushm/output.hpp"
#include "apps/gpushm/segment/connect.hpp"
#include "apps/gpushm/segment/describe.hpp"
#include "apps/gpushm/segment/holding.hpp"
#include "apps/gpushm/segment/metadata.hpp"
#include "apps/gpushm/segment/transfer.hpp"
#include "apps/support/stop_signal.hpp"
#include "base/segments/names.hpp"
#include "base/text/text_layout.hpp"
#include "gpu/memory/backends/backend.hpp"
#include "gpu/memory/backends/chunk_plan.hpp"
#include "gpushm/client.hpp"

namespace gpushm::cli {

namespace {

struct create_arguments {
  connection_arguments connection;
  std::string name;
  create_options options;  ///< without the size
  std::optional<std::uint64_t> size_bytes;
  std::string from;
  std::optional<std::uint8_t> fill;
  std::string metadata;  ///< or "@FILE"
  bool hold = false;
  bool until_released = false;
  std::optional<std::chrono::milliseconds> timeout;  ///< for hold and until_released
};

void add_create_arguments(CLI::App& app, create_arguments& arguments) {
  app.add_option("NAME", arguments.name, "Name of the segment")->required()->type_name("");
  auto* size = add_size(
      app, "--size", "Size, such as 64MiB (unless --from is given)", [&](std::uint64_t value) {
        arguments.size_bytes = value;
      });
  auto* from =
      app.add_option("--from", arguments.from, "Fill it with this file and use the file's size")
          ->type_name("FILE")
          ->excludes(size);
  add_device(app,
             "--device",
             "auto (default), host, an ordinal, GPU-<uuid> or MIG-<uuid>",
             arguments.options.device);
  add_choice(app,
             "--lifetime",
             "When it is freed (leased, the default: with its last lease)",
             arguments.options.lifetime,
             {{"leased", lifetime::leased}, {"persistent", lifetime::persistent}});
  add_size(app,
           "--chunk",
           "Size of each physical allocation (default: a single one)",
           [&](std::uint64_t value) { arguments.options.chunk_bytes = value; });
  app.add_flag("--huge-pages", arguments.options.huge_pages, "Allocate host memory in 2 MiB pages");
  add_fill(app, arguments.fill)->excludes(from);
  app.add_option("--metadata", arguments.metadata, "Metadata to publish with it, up to 64 KiB")
      ->type_name("TEXT|@FILE");
  auto* hold = app.add_flag("--hold", arguments.hold, "Keep it until SIGINT or SIGTERM");
  app.add_flag("--until-released",
               arguments.until_released,
               "Keep it until other processes have opened it and the last one has released it")
      ->excludes(hold);
  add_duration(app,
               "--timeout",
               "Time limit of --hold and --until-released (default: no limit)",
               [&](auto value) { arguments.timeout = value; });
  add_connection(app, arguments.connection);
}

/// What `client::create` would refuse: reported before a missing `--hold`, so that it need not be
/// found in a second attempt. `size_bytes` is that of the segment.
void check_options(const create_arguments& arguments, std::uint64_t size_bytes) {
  base::check_name("create", arguments.name);
  const auto backend =
      memory::backend_for_create(arguments.options.device, arguments.options.huge_pages);
  static_cast<void>(
      memory::plan_chunks(size_bytes, arguments.options.chunk_bytes, backend->granularity()));
}

void check(const create_arguments& arguments) {
  check_is_own(arguments.name, "create");
  if (!arguments.size_bytes && arguments.from.empty()) {
    throw usage_error(errc::invalid_argument,
                      "create",
                      arguments.name,
                      "no size is given",
                      "give --size, for instance --size 64MiB, or --from FILE");
  }
  if (arguments.timeout && !arguments.hold && !arguments.until_released) {
    throw usage_error(errc::invalid_argument,
                      "create",
                      arguments.name,
                      "--timeout requires --hold or --until-released",
                      "to wait for a broker, use --connect-timeout");
  }
}

void check_lifetime(const create_arguments& arguments, std::uint64_t size_bytes) {
  if (arguments.options.lifetime == lifetime::leased && !arguments.hold &&
      !arguments.until_released) {
    check_options(arguments, size_bytes);
    throw usage_error(errc::invalid_argument,
                      "create",
                      arguments.name,
                      "a leased segment is freed as soon as this command exits",
                      "add --hold or --until-released, or use --lifetime persistent");
  }
}

void show(const create_arguments& arguments, const segment& created, std::uint64_t metadata_bytes) {
  if (arguments.connection.json) {
    json document = to_json(created);
    document["metadata_bytes"] = metadata_bytes;
    document["requested_device"] = arguments.options.device;
    print_json(json{{"created", std::move(document)}});
    return;
  }
  print_line(fmt::format("created \"{}\"", created.name()));
  print(base::fields_text(segment_fields(created), 2));
}

int run_create(const create_arguments& arguments) {
  check(arguments);
  const std::string metadata = read_metadata(arguments.metadata);
  create_options options = arguments.options;
  options.size_bytes = arguments.size_bytes.value_or(0);
  std::optional<input_file> input;
  if (!arguments.from.empty()) {
    input = open_input(arguments.from);
    options.size_bytes = input->size_bytes;
  }
  check_lifetime(arguments, options.size_bytes);
  client broker = connect(arguments.connection);
  segment created = broker.create(arguments.name, options);
  if (input) {
    load(created, input->fd.get(), arguments.from);
  } else if (arguments.fill) {
    created.fill(std::byte{*arguments.fill});
  }
  // Before others can open it, so that no event is missed.
  std::optional<subscription> events;
  if (arguments.until_released) {
    events = broker.subscribe(arguments.name);
  }
  std::optional<app::stop_signal> stop;
  if (arguments.hold || arguments.until_released) {
    stop.emplace();
  }
  created.publish(metadata);
  show(arguments, created, metadata.size());
  flush_output();
  if (events) {
    return wait_released(broker, *events, created, *stop, arguments.timeout);
  }
  return arguments.hold ? hold(created, *stop, arguments.timeout) : exit_ok;
}

}  // namespace

void add_create(command_list& commands) {
  add_command<create_arguments>(
      commands, "create", "Create and publish a segment", add_create_arguments, run_create);
}

}  // namespace gpushm::cli
