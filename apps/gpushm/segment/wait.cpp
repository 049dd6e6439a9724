// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <optional>

#include "apps/gpushm/commands.hpp"
#include "apps/gpushm/json_output.hpp"
#include "apps/gpushm/output.hpp"
#include "apps/support/duration.hpp"
#include "base/syscall.hpp"

namespace gpushm::cli {

namespace {

using clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Nothing when there is no such published segment.
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
    print_line((info ? "published \"" : "removed \"") + arguments.name + "\"");
  }
  return exit_ok;
}

[[noreturn]] void time_out(const wait_arguments& arguments) {
  throw error(errc::timed_out,
              "wait for",
              arguments.name,
              (arguments.removed ? "it was not removed within " : "nobody published it within ") +
                  app::duration_text(arguments.timeout),
              "give a longer --timeout, or look at what there is: gpushm ls");
}

}  // namespace

int run_wait(const wait_arguments& arguments) {
  const auto end = clock::now() + arguments.timeout;
  client broker = connect(arguments.connection, arguments.timeout);
  // Subscribed before asking, so that nothing falls between the two.
  subscription events = broker.subscribe(arguments.name);
  bool gone = false;
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
        const auto seen = events.next(left);
        // Any event of the name, or a gap in the events: ask how things are now.
        again = seen && (seen->kind == event_kind::resync || seen->name == arguments.name);
      }
    } catch (const error& failure) {
      const bool lost = failure.code() == errc::broker_gone ||
                        (gone && failure.code() == errc::broker_unreachable);
      if (!lost) {
        throw;
      }
      if (clock::now() >= end) {
        throw;
      }
      if (!gone) {
        note(std::string(failure.what()) + "; waiting for it to come back");
        gone = true;
      }
      // A new broker announces itself to nobody: it can only be tried again.
      base::pause_before_retry(milliseconds(50));
    }
  }
}

}  // namespace gpushm::cli
