// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <chrono>
#include <optional>
#include <string>

#include "apps/gpushm/command.hpp"
#include "apps/gpushm/commands.hpp"
#include "apps/gpushm/exit_status.hpp"
#include "apps/gpushm/json_output.hpp"
#include "apps/gpushm/options.hpp"
#include "apps/gpushm/output.hpp"
#include "apps/gpushm/segment/connect.hpp"
#include "apps/support/duration.hpp"
#include "base/files/syscall.hpp"
#include "gpushm/client.hpp"

namespace gpushm::cli {

namespace {

struct wait_arguments {
  connection_arguments connection;
  std::string name;
  std::chrono::milliseconds timeout{30'000};
  bool removed = false;
};

void add_wait_arguments(CLI::App& app, wait_arguments& arguments) {
  app.add_option("NAME", arguments.name, "Name of the segment")->required()->type_name("");
  add_duration(app, "--timeout", "How long to wait (default: 30s)", [&](auto value) {
    arguments.timeout = value;
  });
  app.add_flag("--removed", arguments.removed, "Wait until no such segment exists");
  add_connection(app, arguments.connection);
}

using clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Empty if no such segment is published.
std::optional<segment_info> published(client& broker, const std::string& name) {
  try {
    segment_info info = broker.stat(name);
    return info.published ? std::optional(std::move(info)) : std::nullopt;
  } catch (const error& failure) {
    if (failure.code() == errc::no_such_segment) {
      return std::nullopt;
    }
    throw;
  }
}

int report(const wait_arguments& arguments, const std::optional<segment_info>& info) {
  if (arguments.connection.json) {
    print_json(info ? json{{"published", to_json(*info)}} : json{{"removed", arguments.name}});
  } else {
    print_line(fmt::format("{} \"{}\"", info ? "published" : "removed", arguments.name));
  }
  return exit_ok;
}

[[noreturn]] void time_out(const wait_arguments& arguments) {
  throw error(errc::timed_out,
              "wait for",
              arguments.name,
              (arguments.removed ? "it was not removed within " : "it was not published within ") +
                  app::duration_text(arguments.timeout),
              "give a longer --timeout, or list the segments: gpushm ls");
}

int run_wait(const wait_arguments& arguments) {
  const auto end = clock::now() + arguments.timeout;
  client broker = connect(arguments.connection, arguments.timeout);
  // Subscribed before the query, so that no change is missed between the two.
  subscription events = broker.subscribe(arguments.name);
  bool was_lost = false;
  for (;;) {
    try {
      const auto info = published(broker, arguments.name);
      if (info.has_value() != arguments.removed) {
        return report(arguments, info);
      }
      for (bool again = false; !again;) {
        const auto left = std::chrono::ceil<milliseconds>(end - clock::now());
        if (left.count() <= 0) {
          time_out(arguments);
        }
        const auto event = events.next(left);
        // Any event of the name, or lost events: query again.
        again = event && (event->kind == event_kind::resync || event->name == arguments.name);
      }
    } catch (const error& failure) {
      const bool lost = failure.code() == errc::broker_gone ||
                        (was_lost && failure.code() == errc::broker_unreachable);
      if (!lost) {
        throw;
      }
      if (clock::now() >= end) {
        throw;
      }
      if (!was_lost) {
        note(fmt::format("{}; waiting for it to restart", failure.what()));
        was_lost = true;
      }
      // A new broker sends no notification, so retry.
      base::pause_before_retry(milliseconds(50));
    }
  }
}

}  // namespace

void add_wait(command_list& commands) {
  add_command<wait_arguments>(commands,
                              "wait",
                              "Wait until a segment is published or removed",
                              add_wait_arguments,
                              run_wait);
}

}  // namespace gpushm::cli
