// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/unique_fd.hpp"

namespace gpushm::base {

using deadline = std::chrono::steady_clock::time_point;
[[nodiscard]] inline deadline deadline_in(std::chrono::milliseconds timeout) {
  return std::chrono::steady_clock::now() + timeout;
}

struct child_options {
  /// argv[0] is the path of the program.
  std::vector<std::string> argv;
  /// Added to this process's environment, replacing what is there.
  std::vector<std::pair<std::string, std::string>> environment;
  /// Standard error goes where standard output goes; otherwise it is this process's.
  bool merge_stderr = false;
  /// Waiting for the child also ends, with `errc::timed_out`, when this descriptor becomes
  /// readable; -1: none.
  int cancel_fd = -1;
};

/// A child process in a process group of its own, with pipes to its standard input and output. The
/// group is killed and the child reaped with the object; the child also dies with the thread that
/// started it. Move-only.
///
/// Distinct objects: safe. Shared objects: unsafe.
class child_process {
 public:
  /// Throws `error` (system_error, too_many_descriptors, no such program).
  [[nodiscard]] static child_process start(const child_options& options);
  child_process(child_process&& other) noexcept;
  child_process& operator=(child_process&& other) noexcept;
  child_process(const child_process&) = delete;
  child_process& operator=(const child_process&) = delete;
  ~child_process();

  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  /// Whether it has not been reaped yet.
  [[nodiscard]] bool started() const noexcept { return pid_ > 0; }

  /// Writes a short line to its standard input. Throws `error` (peer_died: it does not read any
  /// more).
  void write_line(std::string_view line);
  void close_input() noexcept { input_.reset(); }

  /// Whether there is output, or its end, to be read; waits for it until `until`.
  [[nodiscard]] bool wait_output(deadline until) const;
  /// Whether it is still running. Does not block.
  [[nodiscard]] bool alive() const;
  /// The next line of its output without the line feed; nothing at the end of the output.
  /// Throws `error` (timed_out).
  [[nodiscard]] std::optional<std::string> read_line(deadline until);
  /// Everything up to the end of its output. False when `until` came first; what came is kept in
  /// `text`.
  [[nodiscard]] bool read_all(std::string& text, deadline until);

  /// Waits for its end and reaps it: the status as of waitpid(2); nothing when `until` comes first.
  [[nodiscard]] std::optional<int> wait(deadline until);
  /// To the whole process group; no effect once reaped.
  void kill(int signal_number) noexcept;
  /// Forgets a process that was killed and does not end (the kernel does not let it out of a system
  /// call): the destructor would wait for it. It is never reaped.
  void abandon() noexcept { pid_ = -1; }

 private:
  child_process(pid_t pid, base::unique_fd pidfd, base::unique_fd input, base::unique_fd output);
  /// True when there is something to read, false when `until` passed.
  [[nodiscard]] bool wait_readable(int fd, deadline until) const;
  void stop() noexcept;

  pid_t pid_ = -1;
  base::unique_fd pidfd_;
  base::unique_fd input_;
  base::unique_fd output_;
  int cancel_fd_ = -1;
  std::string buffer_;
};

/// "exit status 3" or "killed by signal 9 (Killed)", from what waitpid(2) says.
[[nodiscard]] std::string status_text(int wait_status);

/// The path of the running program, symbolic links resolved.
[[nodiscard]] std::string executable_path();

}  // namespace gpushm::base
