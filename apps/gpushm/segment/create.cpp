// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <optional>

#include "apps/gpushm/commands.hpp"
#include "apps/gpushm/json_output.hpp"
#include "apps/gpushm/output.hpp"
#include "apps/gpushm/segment/describe.hpp"
#include "apps/gpushm/segment/holding.hpp"
#include "apps/gpushm/segment/metadata.hpp"
#include "apps/gpushm/segment/transfer.hpp"
#include "apps/support/stop_signal.hpp"
#include "base/text_layout.hpp"

namespace gpushm::cli {

namespace {

void check(const create_arguments& arguments) {
  if (!arguments.size_bytes && arguments.from.empty()) {
    throw usage_error(errc::invalid_argument,
                      "create",
                      arguments.name,
                      "no size is given",
                      "give --size, for instance --size 64MiB, or --from FILE");
  }
  if (arguments.options.lifetime == lifetime::leased && !arguments.hold &&
      !arguments.until_released) {
    throw usage_error(errc::invalid_argument,
                      "create",
                      arguments.name,
                      "a leased segment is freed as soon as this command exits",
                      "add --hold or --until-released, or use --lifetime persistent");
  }
  if (arguments.timeout && !arguments.hold && !arguments.until_released) {
    throw usage_error(errc::invalid_argument,
                      "create",
                      arguments.name,
                      "--timeout requires --hold or --until-released",
                      "to wait for a broker, use --connect-timeout");
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

}  // namespace

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

}  // namespace gpushm::cli
