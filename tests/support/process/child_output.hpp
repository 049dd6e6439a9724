// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <string>

#include "base/files/unique_fd.hpp"
#include "tests/support/process/deadline.hpp"

namespace gpushm_testing {

enum class stream : std::uint8_t { out = 0, err = 1 };

/// Collects a process's standard output and standard error.
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class child_output {
 public:
  /// Non-blocking read ends of the two pipes.
  child_output(gpushm::base::unique_fd out, gpushm::base::unique_fd err);

  /// Returns the next line of `stream`, without its newline, that contains a match of `pattern`
  /// (ECMAScript), after the lines that earlier calls returned or skipped. Blocks at most
  /// `timeout`. Throws `harness_error` with everything collected on timeout or at the end of the
  /// stream.
  std::string wait_for_line(const std::string& pattern,
                            std::chrono::milliseconds timeout,
                            stream stream = stream::out);

  /// Reads until both streams have ended (true) or `deadline` (false).
  bool read_to_end(clock::time_point deadline);
  /// Reads available output, waiting for some at most until `deadline`. False when both streams
  /// have ended.
  bool read_some(clock::time_point deadline);

  [[nodiscard]] const std::string& text(stream stream) const { return state(stream).text; }
  /// Both streams, labelled, for failure messages.
  [[nodiscard]] std::string all_output() const;

 private:
  struct stream_state {
    gpushm::base::unique_fd fd;
    std::string text;
    std::size_t searched = 0;  ///< start of the next line to search
  };
  [[nodiscard]] stream_state& state(stream stream) {
    return states_.at(static_cast<std::size_t>(stream));
  }
  [[nodiscard]] const stream_state& state(stream stream) const {
    return states_.at(static_cast<std::size_t>(stream));
  }
  static void take(stream_state& state);

  std::array<stream_state, 2> states_;
};

}  // namespace gpushm_testing
