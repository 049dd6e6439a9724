// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "apps/support/oci/bundle.hpp"
#include "base/process/child_process.hpp"

namespace gpushm::app::oci {

/// A running container, with pipes to the standard input and output of its program. Deleted with
/// the object, and when this process is killed. Move-only. Needs root. Thread-safety: distinct
/// objects: safe; shared objects: unsafe.
class container {
 public:
  /// Starts the runtime without waiting for it; if it fails, the output ends and `problem` returns
  /// the reason. `cancel_fd` as in `base::child_options`. Throws `error` (invalid_argument if a
  /// device node is not one, system_error).
  container(const runtime& runtime,
            const container_options& options,
            std::string_view id_prefix,
            int cancel_fd = -1);
  container(container&&) noexcept = default;
  container& operator=(container&&) = delete;
  container(const container&) = delete;
  container& operator=(const container&) = delete;
  ~container();

  /// The runtime's process, which has the program's standard input and output.
  [[nodiscard]] base::child_process& process() noexcept { return process_; }
  /// The program's PID as the host numbers it; blocks until it exists. Throws `error` (timed_out,
  /// peer_died: the runtime ended, with what it logged).
  [[nodiscard]] pid_t wait_started(base::deadline until);
  /// The runtime's last error message; empty if none.
  [[nodiscard]] std::string problem() const;

 private:
  bundle bundle_;
  base::child_process process_;
};

/// "cannot find /x" of the last line of what runc or crun logged, which is either
/// `time="…" level=error msg="cannot find /x"` or `2026-01-01T00:00:00Z: cannot find /x`. Pure.
[[nodiscard]] std::string last_message(std::string_view log);

}  // namespace gpushm::app::oci
