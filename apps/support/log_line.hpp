// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <cstddef>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "apps/support/log_format.hpp"
#include "gpushm/client.hpp"

namespace gpushm::app {

/// "debug", "info", "warning" or "error"; nullopt for other words.
[[nodiscard]] std::optional<log_level> log_level_of(std::string_view word) noexcept;

/// The log of a program, one line per message, with the time in UTC,
///   2026-11-21T12:00:00.000Z info    gpushm-brokerd: text
/// or one JSON object, with the members time, level, program and message. On a terminal, warnings
/// and errors have colours.
///
/// A program must not wait for the reader of its log: a line that would block is dropped, and the
/// number of dropped lines is logged before the next one. Lines that are longer than PIPE_BUF are
/// shortened. Allocates no memory.
///
/// Thread-safety: distinct objects: safe; shared objects: safe.
class program_log {
 public:
  /// Lines below `least` are left out. `file`: a pipe, a terminal or a file, not owned.
  explicit program_log(std::string program,
                       log_level least = log_level::info,
                       log_format format = log_format::text,
                       int file = STDERR_FILENO);

  /// `text` is UTF-8 without control characters other than line feeds (`base::printable_lines`).
  /// A line feed is written as "\x0a", and in JSON as "\n".
  void write(log_level level, std::string_view text) noexcept;

 private:
  [[nodiscard]] bool write_line(log_level level, std::string_view text) const noexcept;

  const std::string program_;
  const log_level least_;
  const log_format format_;
  const int to_;
  const bool has_colours_;
  std::mutex mutex_;
  std::size_t dropped_ = 0;  ///< since the last line
};

}  // namespace gpushm::app
