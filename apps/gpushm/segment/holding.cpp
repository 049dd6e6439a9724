// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/segment/holding.hpp"

#include "apps/gpushm/commands.hpp"
#include "apps/gpushm/output.hpp"
#include "apps/support/duration.hpp"

namespace gpushm::cli {

using std::chrono::milliseconds;
using clock = std::chrono::steady_clock;

namespace {

// How soon a signal, or the broker's death, is noticed.
constexpr milliseconds tick{200};

void check_alive(const segment& held) {
  if (held.state() == segment_state::broker_gone) {
    throw error(errc::broker_gone,
                "hold",
                held.name(),
                "the broker is gone, and the name with it",
                "start the broker again and create the segment anew");
  }
}

}  // namespace

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

}  // namespace gpushm::cli
