// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <future>
#include <string_view>
#include <thread>

#include "tests/support/process/child_output.hpp"
#include "tests/support/process/spawn.hpp"
#include "tests/support/ptrace/tracer.hpp"

namespace gpushm_testing {

/// A program that is started under ptrace and, if requested, killed at the entry of its k-th system
/// call between the marks of ptrace/marker.hpp. The program needs nothing but the marks. A thread
/// of this object is the program's parent and tracer. The program is killed on destruction.
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class traced_process {
 public:
  /// Returns once the program is attached to; it starts afterwards. `kill_at` as in `trace_to_end`.
  /// Throws `harness_error`.
  traced_process(spawn_options options, std::uint64_t kill_at);
  traced_process(const traced_process&) = delete;
  traced_process& operator=(const traced_process&) = delete;
  ~traced_process();

  [[nodiscard]] pid_t pid() const noexcept { return process_.pid; }

  /// Writes to its standard input; short texts only. False when the program no longer reads.
  bool write(std::string_view text);
  /// See `child_output::wait_for_line`.
  std::string wait_for_line(const std::string& pattern,
                            std::chrono::milliseconds timeout,
                            stream stream = stream::out) {
    return output_.wait_for_line(pattern, timeout, stream);
  }

  /// Blocks until the program has exited, at most `timeout`, and returns its result. Call once
  /// only. On timeout kills the program and throws `harness_error` with the output.
  [[nodiscard]] trace_result wait_end(std::chrono::milliseconds timeout);

  [[nodiscard]] child_output& output() { return output_; }

 private:
  spawned process_;
  child_output output_{{}, {}};
  std::future<trace_result> result_;
  std::jthread tracer_;
};

/// Starts a program without input and blocks until it exits.
[[nodiscard]] trace_result traced_run(spawn_options options,
                                      std::uint64_t kill_at,
                                      std::chrono::milliseconds timeout = std::chrono::seconds(30));

}  // namespace gpushm_testing
