// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/segment/holding.hpp"

#include <fmt/core.h>

#include "apps/gpushm/exit_status.hpp"
#include "apps/gpushm/output.hpp"
#include "apps/support/duration.hpp"

namespace gpushm::cli {

using std::chrono::milliseconds;
using clock = std::chrono::steady_clock;

namespace {

// How often to check for signals and the broker's death.
constexpr milliseconds poll_interval{200};

void check_alive(const segment& held) {
  if (held.state() == segment_state::broker_gone) {
    throw error(errc::broker_gone,
                "hold",
                held.name(),
                "the broker is gone, so the name no longer exists",
                "restart the broker and create the segment again");
  }
  if (held.state() == segment_state::device_lost) {
    throw error(errc::gone_or_replaced,
                "hold",
                held.name(),
                "its GPU was lost, and the memory with it",
                "create it again, on a GPU that works");
  }
}

}  // namespace

int hold(const segment& held, const app::stop_signal& stop, std::optional<milliseconds> timeout) {
  const auto end = timeout ? clock::now() + *timeout : clock::time_point::max();
  while (clock::now() < end && !stop.wait(poll_interval)) {
    check_alive(held);
    if (held.state() == segment_state::removed) {
      note(fmt::format("hold \"{}\": another client removed it", held.name()));
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
      throw error(
          errc::timed_out,
          "wait for release of",
          held.name(),
          (opened ? "another process still has it open after " : "no process opened it within ") +
              app::duration_text(*timeout),
          "give a longer --timeout");
    }
    const auto event = events.next(poll_interval);
    if (!event) {
      continue;
    }
    if (event->kind == event_kind::resync) {
      // The lost events may include the release: check the number of leases.
      if (opened && broker.stat(held.name()).leases <= 1) {
        return exit_ok;
      }
      continue;
    }
    if (event->name != held.name() || event->generation != held.generation()) {
      continue;
    }
    opened = opened || event->kind == event_kind::opened;
    if (event->kind == event_kind::released) {
      return exit_ok;
    }
    if (event->kind == event_kind::removed && event->leases <= 1) {
      note(fmt::format("wait for release of \"{}\": another client removed it", held.name()));
      return exit_ok;
    }
  }
  return exit_ok;
}

}  // namespace gpushm::cli
