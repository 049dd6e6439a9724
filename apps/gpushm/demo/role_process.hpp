// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "apps/gpushm/json_output.hpp"
#include "base/process/child_process.hpp"

namespace gpushm::cli {

/// One of the demo's processes. The destructor kills it. Move-only.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class role_process {
 public:
  /// `arguments` follow `gpushm demo-role ROLE`. Throws `error`.
  role_process(std::string role, const std::vector<std::string>& arguments, int cancel_fd);

  /// Blocks until the process has sent a report or exited, or until `until`. Returns true if
  /// `expect` would not block.
  [[nodiscard]] bool has_report(base::deadline until) { return child_.wait_output(until); }
  [[nodiscard]] bool alive() const { return child_.alive(); }
  /// Returns its next report, which must be `event`. Throws `error`: the failure that the process
  /// reported, timed_out, peer_died (it exited), protocol_error (another event).
  json expect(std::string_view event, base::deadline until);
  void send(std::string_view command) { child_.write_line(command); }
  /// Its PID in the demo's PID namespace.
  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  /// Sets the PID of the working process, if it is a child of the started one.
  void set_pid(pid_t pid) noexcept { pid_ = pid; }

  /// Closes its input, which makes it exit, and waits. Throws `error` unless it exits with status
  /// 0.
  void finish(base::deadline until);
  /// Sends SIGKILL to the working process, and returns when it is dead and reaped. Throws `error`.
  void kill_and_wait(base::deadline until);

 private:
  std::string role_;
  base::child_process child_;
  pid_t pid_ = -1;
};

}  // namespace gpushm::cli
