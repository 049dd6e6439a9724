// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace gpushm::keeper {

struct keeper_options {
  /// The program, absolute or found in $PATH, and its arguments.
  std::vector<std::string> argv;
  /// Where the program sends notifications (NOTIFY_SOCKET). A dead keeper's socket is replaced. Its
  /// directory must be accessible only to this user; it is created if there is none.
  std::string socket_path;
  /// Where keepers take over from each other (takeover.hpp); empty: nowhere. If another keeper
  /// listens there, this one starts with what that has kept, in its place. Its directory must be
  /// accessible only to this user; it is created if there is none.
  std::string takeover_path;
  /// How long a takeover may last, from the request until this keeper's program has sent READY=1;
  /// then the previous keeper continues. Includes the end of that one's program (`stop_timeout`).
  std::chrono::milliseconds takeover_timeout{30'000};
  /// After a takeover that has failed, refuses further ones for this many times as long as the
  /// program was away, doubled with each that fails, up to 5 minutes (takeover_pause.hpp). 0:
  /// never.
  unsigned takeover_pause_factor = 10;
  /// After another keeper has taken over, waits for SIGTERM or SIGINT, instead of returning: for a
  /// container, which would be started again and take over in turn.
  bool stays_after_takeover = false;
  /// 0: as many as the open file limit allows.
  std::size_t max_descriptors = 0;
  /// How long the program may take to exit after SIGTERM, before SIGKILL.
  std::chrono::milliseconds stop_timeout{10'000};
  /// A program that is ready and reports (WATCHDOG=1) is killed if it has not reported for as long,
  /// counting only time in which this keeper runs. Passed on as WATCHDOG_USEC. 0: it is not.
  std::chrono::milliseconds watchdog_timeout{30'000};
  /// The pause before the program is started again; doubled, up to 5 s, each time that it has lived
  /// less than 10 s and has not sent READY=1. None if it has, and has lived for 10 ms.
  std::chrono::milliseconds restart_delay{20};
};

/// Keeps descriptors for one program and starts it again, with them, whenever it has exited: the
/// part of systemd that a broker needs where there is no systemd. It does nothing else, so that
/// nothing else can end it.
///
/// The program stores descriptors by the notification protocol (`descriptor_store`) and finds them
/// at its start (`take_inherited_descriptors`). Notifications of other users are ignored.
///
/// A keeper is two processes (guard.hpp): when one is killed, the other one continues and starts
/// another, and the program does not notice.
///
/// A keeper of another version, with another version of the program, can take over: it starts its
/// program with all descriptors. If that exits, or is not ready in time, the previous keeper starts
/// its own program again, and refuses further takeovers for a while. If the previous keeper has
/// ended meanwhile, this one has the only copy: it continues, and starts its program until that is
/// ready.
///
/// Signals: SIGTERM and SIGINT end the program and then the keeper; SIGHUP ends the program and
/// starts it again: an upgrade.
class keeper {
 public:
  /// Binds the socket, and takes over. Blocks for `takeover_timeout` at most. Throws `error`:
  /// address_in_use (a living keeper has the socket), broker_unreachable (the other keeper does not
  /// hand over, or refuses), too_many_descriptors, system_error.
  explicit keeper(keeper_options options);
  keeper(const keeper&) = delete;
  keeper& operator=(const keeper&) = delete;
  ~keeper();

  /// Starts the program, and blocks until SIGTERM or SIGINT, or until the program exits with 127
  /// (it cannot be executed) and has stored nothing, or until another keeper has taken over, or
  /// until this one's takeover has failed. Returns the exit status of the program: its code, or 128
  /// and the signal's number; 0 after another keeper has taken over; 1 if a takeover fails
  /// otherwise. Blocks those signals, and SIGCHLD and SIGHUP, in this thread, which must be the
  /// only one. Throws `error`: system_error.
  [[nodiscard]] int run();

 private:
  class impl;
  std::unique_ptr<impl> impl_;
};

}  // namespace gpushm::keeper
