// SPDX-License-Identifier: Apache-2.0
#include <cerrno>
#include <optional>

#include "base/file.hpp"
#include "commands.hpp"
#include "describe.hpp"
#include "file_error.hpp"
#include "json_output.hpp"
#include "output.hpp"
#include "support/duration.hpp"
#include "support/stop_signal.hpp"
#include "support/table.hpp"
#include "transfer.hpp"

namespace gpushm::cli {

namespace {

using std::chrono::milliseconds;
using clock = std::chrono::steady_clock;

// How soon a signal, or the broker's death, is noticed.
constexpr milliseconds tick{200};

std::string read_metadata(const create_arguments& arguments) {
  if (!arguments.metadata.starts_with('@')) {
    return arguments.metadata;
  }
  const std::string path = arguments.metadata.substr(1);
  // One byte more than is allowed, so that too much is seen here.
  auto text = base::read_small_file(path, max_metadata_bytes + 1);
  if (!text) {
    throw_file_error(errno, "read metadata", path, "open");
  }
  if (text->size() > max_metadata_bytes) {
    throw error(errc::message_too_large,
                "read metadata",
                path,
                "metadata may have up to 65536 bytes and this file has more",
                "put large tables into the segment itself");
  }
  return *std::move(text);
}

void check(const create_arguments& arguments) {
  if (!arguments.size_bytes && arguments.from.empty()) {
    throw usage_error(errc::invalid_argument,
                      "create",
                      arguments.name,
                      "how large is not said",
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
                      "--timeout limits --hold and --until-released, and neither is given",
                      "to wait for a broker use --connect-timeout");
  }
}

void show(const create_arguments& arguments, const segment& made, std::uint64_t metadata_bytes) {
  if (arguments.connection.json) {
    json document = to_json(made);
    document["metadata_bytes"] = metadata_bytes;
    document["requested_device"] = arguments.options.device;
    print_json(json{{"created", std::move(document)}});
    return;
  }
  print_line("created \"" + made.name() + "\"");
  print(app::fields_text(segment_fields(made), 2));
}

void check_alive(const segment& held) {
  if (held.state() == segment_state::broker_gone) {
    throw error(errc::broker_gone,
                "hold",
                held.name(),
                "the broker is gone, and the name with it",
                "start the broker again and create the segment anew");
  }
}

int hold(const segment& held, const app::stop_signal& stop, std::optional<milliseconds> timeout) {
  const auto end = timeout ? clock::now() + *timeout : clock::time_point::max();
  while (clock::now() < end && !stop.wait(tick)) {
    check_alive(held);
    if (held.state() == segment_state::removed) {
      note("hold \"" + held.name() + "\": somebody removed it");
      return exit_ok;
    }
  }
  return exit_ok;
}

int wait_released(client& broker,
                  subscription& events,
                  const segment& held,
                  const app::stop_signal& stop,
                  std::optional<milliseconds> timeout) {
  const auto end = timeout ? clock::now() + *timeout : clock::time_point::max();
  bool opened = false;
  while (!stop.pending()) {
    check_alive(held);
    if (clock::now() >= end) {
      throw error(errc::timed_out,
                  "wait for release of",
                  held.name(),
                  (opened ? "it is still open elsewhere after " : "nobody opened it within ") +
                      app::duration_text(*timeout),
                  "give a longer --timeout");
    }
    const auto seen = events.next(tick);
    if (!seen) {
      continue;
    }
    if (seen->kind == event_kind::resync) {
      // What was lost may be the very release: only the number of leases can tell now.
      if (opened && broker.stat(held.name()).leases <= 1) {
        return exit_ok;
      }
      continue;
    }
    if (seen->name != held.name() || seen->generation != held.generation()) {
      continue;
    }
    opened = opened || seen->kind == event_kind::opened;
    if (seen->kind == event_kind::released) {
      return exit_ok;
    }
    if (seen->kind == event_kind::removed && seen->leases <= 1) {
      note("wait for release of \"" + held.name() + "\": somebody removed it");
      return exit_ok;
    }
  }
  return exit_ok;
}

}  // namespace

int run_create(const create_arguments& arguments) {
  check(arguments);
  const std::string metadata = read_metadata(arguments);
  create_options options = arguments.options;
  options.size_bytes = arguments.size_bytes.value_or(0);
  std::optional<input_file> input;
  if (!arguments.from.empty()) {
    input = open_input(arguments.from);
    options.size_bytes = input->size_bytes;
  }
  client broker = connect(arguments.connection);
  segment made = broker.create(arguments.name, options);
  if (input) {
    load(made, input->fd.get(), arguments.from);
  } else if (arguments.fill) {
    made.fill(std::byte{*arguments.fill});
  }
  // Before others can see it, so that no open is missed.
  std::optional<subscription> events;
  if (arguments.until_released) {
    events = broker.subscribe(arguments.name);
  }
  std::optional<app::stop_signal> stop;
  if (arguments.hold || arguments.until_released) {
    stop.emplace();
  }
  made.publish(metadata);
  show(arguments, made, metadata.size());
  flush_output();
  if (events) {
    return wait_released(broker, *events, made, *stop, arguments.timeout);
  }
  return arguments.hold ? hold(made, *stop, arguments.timeout) : exit_ok;
}

}  // namespace gpushm::cli
