// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/files/unique_fd.hpp"

namespace gpushm::base {

using deadline = std::chrono::steady_clock::time_point;
[[nodiscard]] inline deadline deadline_in(std::chrono::milliseconds timeout) {
  return std::chrono::steady_clock::now() + timeout;
}

struct child_options {
  /// argv[0] is the path of the program.
  std::vector<std::string> argv;
  /// Added to this process's environment, replacing existing variables.
  std::vector<std::pair<std::string, std::string>> environment;
  /// Redirects standard error to standard output; otherwise the child inherits standard error.
  bool merge_stderr = false;
  /// Waits for the child also end, with `errc::timed_out`, when this descriptor becomes readable;
  /// -1: none.
  int cancel_fd = -1;
};

/// A child process in a new process group, with pipes to its input and output. A program inherits
/// no descriptors but these and standard error. The destructor kills the group and reaps the child;
/// the child also dies with the thread that started it. Move-only.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class child_process {
 public:
  /// Throws `error` (system_error, too_many_descriptors, no such program).
  [[nodiscard]] static child_process start(const child_options& options);
  /// Runs `work` in a child that executes no other program. `work` writes its output to the
  /// descriptor that it is called with, not to standard output, whose buffer may have text of this
  /// process. The child exits with 0, without the handlers of this process, or with 1 if `work`
  /// throws. Precondition: this process has one thread. Throws `error` (system_error,
  /// too_many_descriptors).
  [[nodiscard]] static child_process fork(const std::function<void(int output)>& work);
  child_process(child_process&& other) noexcept;
  child_process& operator=(child_process&& other) noexcept;
  child_process(const child_process&) = delete;
  child_process& operator=(const child_process&) = delete;
  ~child_process();

  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  /// Whether it has not been reaped yet.
  [[nodiscard]] bool started() const noexcept { return pid_ > 0; }

  /// Writes a short line to its standard input. Throws `error` (peer_died: the child has closed
  /// it).
  void write_line(std::string_view line);
  void close_input() noexcept { input_.reset(); }

  /// Blocks until output, or its end, can be read (true) or until `until` (false).
  [[nodiscard]] bool wait_output(deadline until) const;
  /// Whether it is still running. Does not block.
  [[nodiscard]] bool alive() const;
  /// Returns the next line of its output without the line feed; nullopt at the end of the output.
  /// Throws `error` (timed_out).
  [[nodiscard]] std::optional<std::string> read_line(deadline until);
  /// Appends the rest of its output to `text`. Returns false if `until` passes before the end.
  [[nodiscard]] bool read_all(std::string& text, deadline until);

  /// Waits for its exit and reaps it: the status of waitpid(2); nullopt if `until` passes first.
  [[nodiscard]] std::optional<int> wait(deadline until);
  /// Signals the whole process group; no effect once reaped.
  void kill(int signal_number) noexcept;
  /// Abandons a killed process that does not exit (it is stuck in a system call), for which the
  /// destructor would wait. It is never reaped.
  void abandon() noexcept { pid_ = -1; }

 private:
  child_process(pid_t pid, base::unique_fd pidfd, base::unique_fd input, base::unique_fd output);
  /// True when `fd` is readable, false when `until` passed.
  [[nodiscard]] bool wait_readable(int fd, deadline until) const;
  void stop() noexcept;

  pid_t pid_ = -1;
  base::unique_fd pidfd_;
  base::unique_fd input_;
  base::unique_fd output_;
  int cancel_fd_ = -1;
  std::string buffer_;
};

/// "exit status 3" or "killed by signal 9 (Killed)", from the status of waitpid(2).
[[nodiscard]] std::string status_text(int wait_status);

/// The path of the running program, symbolic links resolved.
[[nodiscard]] std::string executable_path();

}  // namespace gpushm::base
