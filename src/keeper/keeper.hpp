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
  /// Where the program sends notifications (NOTIFY_SOCKET). An existing socket is replaced. Its
  /// directory must be accessible only to this user.
  std::string socket_path;
  /// 0: as many as the open file limit allows.
  std::size_t max_descriptors = 0;
  /// How long the program may take to exit after SIGTERM, before SIGKILL.
  std::chrono::milliseconds stop_timeout{10'000};
  /// The pause before the program is started again; doubled, up to 5 s, each time that it has lived
  /// less than 10 s and has not sent READY=1.
  std::chrono::milliseconds restart_delay{20};
};

/// Keeps descriptors for one program and starts it again, with them, whenever it has exited: the
/// part of systemd that a broker needs where there is no systemd. It does nothing else, so that
/// nothing else can end it.
///
/// The program stores descriptors by the notification protocol (`descriptor_store`) and finds them
/// at its start (`take_inherited_descriptors`). Notifications of other users are ignored.
///
/// Signals: SIGTERM and SIGINT end the program and then the keeper; SIGHUP ends the program and
/// starts it again: an upgrade.
class keeper {
 public:
  /// Binds the socket. Throws `error`.
  explicit keeper(keeper_options options);
  keeper(const keeper&) = delete;
  keeper& operator=(const keeper&) = delete;
  ~keeper();

  /// Starts the program, and blocks until SIGTERM or SIGINT, or until the program exits with 127
  /// (it cannot be executed) and has stored nothing. Returns the exit status of the program: its
  /// code, or 128 and the signal's number. Blocks those signals, and SIGCHLD and SIGHUP, in this
  /// thread, which must be the only one. Throws `error`: system_error.
  [[nodiscard]] int run();

 private:
  class impl;
  std::unique_ptr<impl> impl_;
};

}  // namespace gpushm::keeper
