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
#include "base/names.hpp"
#include "base/text_layout.hpp"
#include "memory/backend.hpp"
#include "memory/chunk_plan.hpp"

namespace gpushm::cli {

namespace {

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

}  // namespace gpushm::cli
