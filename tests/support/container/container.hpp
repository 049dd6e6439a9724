// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "apps/support/oci/bundle.hpp"
#include "tests/support/container/options.hpp"
#include "tests/support/process/child.hpp"

namespace gpushm_testing {

/// A container created by the real runc. The program is PID 1 in it. The container, its cgroup and
/// its files are removed on destruction, and also when the test process is killed. Move-only. Needs
/// root.
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class container {
 public:
  /// Creates the bundle and starts the program. Does not block; a failing runtime shows in the
  /// output that `wait_for_line` and `wait_exit` report. Throws `harness_error`.
  [[nodiscard]] static container start(const container_options& options);
  container(container&&) noexcept = default;
  container& operator=(container&&) noexcept = default;
  ~container();

  /// A line of the program's standard output (the runtime's own messages come on standard error).
  std::string wait_for_line(const std::string& pattern,
                            std::chrono::milliseconds timeout,
                            stream stream = stream::out);
  /// Blocks until the program has exited. Returns 128 plus the signal for a program that was killed
  /// by a signal, as runc reports it. Throws `harness_error` with all output.
  exit_status wait_exit(std::chrono::milliseconds timeout);
  [[nodiscard]] bool running() { return runtime_.running(); }

  void write(std::string_view text) { runtime_.write(text); }
  void close_stdin() { runtime_.close_stdin(); }

  /// Sends a signal to the program; SIGKILL, too, reaches the program and not only the runtime. The
  /// kernel drops signals to PID 1 that it has no handler for, except SIGKILL from outside.
  void kill(int signal_number);

  /// Runs another program in the container, under the uid of the first, and blocks until it exits.
  [[nodiscard]] run_result exec(const std::vector<std::string>& argv) const;

  /// The program's pid in the host's PID namespace; blocks at most five seconds until it runs.
  /// Throws `harness_error`.
  [[nodiscard]] pid_t host_pid() const;

  [[nodiscard]] const std::string& text(stream stream) const { return runtime_.text(stream); }
  /// Both streams and the runtime's log, for failure messages.
  [[nodiscard]] std::string all_output();

 private:
  container(std::unique_ptr<gpushm::app::oci::bundle> created, child runtime);
  [[nodiscard]] std::string log_text() const;

  std::unique_ptr<gpushm::app::oci::bundle> bundle_;
  child runtime_;
};

}  // namespace gpushm_testing
