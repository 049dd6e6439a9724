// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "apps/support/oci/bundle.hpp"
#include "testing/container/options.hpp"
#include "testing/process/child.hpp"

namespace gpushm_testing {

/// A container made by the real runc. The program is PID 1 in it. The container, its cgroup and its
/// files go with the object, and also when the test process is killed. Move-only. Needs root.
///
/// Distinct objects: safe. Shared objects: unsafe.
class container {
 public:
  /// Makes the bundle and starts the program. Does not wait for anything; a runtime that fails
  /// tells so in `wait_for_line` and `wait_exit` by its output. Throws `harness_error`.
  [[nodiscard]] static container start(const container_options& options);
  container(container&&) noexcept = default;
  container& operator=(container&&) noexcept = default;
  ~container();

  /// A line of the program's standard output (the runtime's own messages come on standard error).
  std::string wait_for_line(const std::string& pattern,
                            std::chrono::milliseconds timeout,
                            stream from = stream::out);
  /// Blocks until the program has ended. A program that a signal killed gives 128 plus the signal,
  /// as runc reports it. Throws `harness_error` with all output.
  exit_status wait_exit(std::chrono::milliseconds timeout);
  [[nodiscard]] bool running() { return runtime_.running(); }

  void write(std::string_view text) { runtime_.write(text); }
  void close_stdin() { runtime_.close_stdin(); }

  /// A signal for the program; SIGKILL too reaches it and not only the runtime. Remember that the
  /// kernel drops signals to PID 1 that it has no handler for, SIGKILL from outside excepted.
  void kill(int signal_number);

  /// The program's pid as the host sees it, once it runs; blocks at most five seconds. Throws
  /// `harness_error`.
  [[nodiscard]] pid_t host_pid() const;

  [[nodiscard]] const std::string& text(stream of) const { return runtime_.text(of); }
  /// Both streams and what the runtime logged, for failure messages.
  [[nodiscard]] std::string everything();

 private:
  container(std::unique_ptr<gpushm::app::oci::bundle> made, child runtime);
  [[nodiscard]] std::string log_text() const;

  std::unique_ptr<gpushm::app::oci::bundle> bundle_;
  child runtime_;
};

}  // namespace gpushm_testing
