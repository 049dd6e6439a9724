// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>

#include "tests/support/process/child_output.hpp"
#include "tests/support/process/spawn.hpp"

namespace gpushm_testing {

/// How a process ended: exactly one of the two is set.
struct exit_status {
  std::optional<int> code;
  std::optional<int> signal;
  /// "exit status 3", "killed by signal 9".
  [[nodiscard]] std::string text() const;
  [[nodiscard]] bool success() const { return code == 0; }
  friend bool operator==(const exit_status&, const exit_status&) = default;
};
/// For GoogleTest's messages.
inline void PrintTo(const exit_status& status, std::ostream* to) {
  *to << status.text();
}
[[nodiscard]] inline exit_status exited(int code) {
  return {code, std::nullopt};
}
[[nodiscard]] inline exit_status killed_by(int signal) {
  return {std::nullopt, signal};
}
/// From a status of waitpid(2).
[[nodiscard]] exit_status exit_status_of(int wait_status);

/// A child process with its pipes; killed, with its process group, and reaped on destruction.
/// Move-only. It also gets SIGKILL when the thread that started it exits.
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class child {
 public:
  /// Does not block. Throws `harness_error`.
  [[nodiscard]] static child start(const spawn_options& options);
  child(child&&) noexcept;
  child& operator=(child&&) noexcept;
  ~child();

  /// Valid until the process has been reaped by `wait_exit`.
  [[nodiscard]] pid_t pid() const noexcept { return pid_; }

  /// Writes all of `text` to its standard input; blocks at most five seconds. Throws
  /// `harness_error`.
  void write(std::string_view text);
  void close_stdin() { in_.reset(); }

  /// See `child_output::wait_for_line`.
  std::string wait_for_line(const std::string& pattern,
                            std::chrono::milliseconds timeout,
                            stream stream = stream::out) {
    return output_.wait_for_line(pattern, timeout, stream);
  }

  /// Blocks until it has exited, at most `timeout`; then the rest of its output has been collected,
  /// too (unless a process that it started keeps the pipes open). Throws `harness_error` with the
  /// output.
  exit_status wait_exit(std::chrono::milliseconds timeout);
  /// Does not block.
  [[nodiscard]] bool running();

  /// Sends the signal to the process only; no effect once reaped.
  void kill(int signal_number);

  [[nodiscard]] const std::string& text(stream stream) const { return output_.text(stream); }
  [[nodiscard]] child_output& output() { return output_; }

 private:
  explicit child(spawned process);
  bool reap(bool block);
  void stop() noexcept;

  pid_t pid_ = -1;
  gpushm::base::unique_fd pidfd_;
  gpushm::base::unique_fd in_;
  child_output output_;
  std::optional<exit_status> status_;
};

/// Result of a program that has exited.
struct run_result {
  exit_status status;
  std::string out;
  std::string err;
};
/// Starts a program without input and blocks until it exits. Throws `harness_error` if it takes
/// longer than `timeout`.
[[nodiscard]] run_result run_program(const spawn_options& options,
                                     std::chrono::milliseconds timeout = std::chrono::seconds(30));

}  // namespace gpushm_testing
