// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "apps/gpushm/json_output.hpp"
#include "base/child_process.hpp"

namespace gpushm::cli {

/// One of the demo's processes, seen from the demo. Killed with the object. Move-only.
/// Distinct objects: safe. Shared objects: unsafe.
class role_process {
 public:
  /// `arguments` follow `gpushm demo-role ROLE`. Throws `error`.
  role_process(std::string role, const std::vector<std::string>& arguments, int cancel_fd);

  /// Whether there is something to `expect`, a report or its end; waits for it until `until`.
  [[nodiscard]] bool has_report(base::deadline until) { return child_.wait_output(until); }
  [[nodiscard]] bool alive() const { return child_.alive(); }
  /// Its next report, which must be `event`. Throws `error`: what the process reported as its own
  /// failure, timed_out, peer_died (it ended), protocol_error (another event).
  json expect(std::string_view event, base::deadline until);
  void tell(std::string_view command) { child_.write_line(command); }
  /// Its process number as seen from here.
  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  /// The number of the process that does the work, when that is another than the one started.
  void set_pid(pid_t pid) noexcept { pid_ = pid; }

  /// Ends its input, which is how it is asked to end, and waits. Throws `error` unless it ends with
  /// status 0.
  void finish(base::deadline until);
  /// SIGKILL to the process that does the work; returns once it is dead and gone. Throws `error`.
  void kill_hard(base::deadline until);

 private:
  std::string role_;
  base::child_process child_;
  pid_t pid_ = -1;
};

}  // namespace gpushm::cli
