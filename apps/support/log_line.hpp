// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <string_view>

namespace gpushm::app {

/// Writes "PROGRAM: TEXT" and a line feed to a pipe, terminal or file, unless that would block: a
/// program that must go on cannot wait for the reader of its log. Counts the lines that are
/// dropped, and says so before the next one. Longer lines than PIPE_BUF are cut. Thread-safe.
void write_log_line(std::string_view program,
                    std::string_view text,
                    int to = STDERR_FILENO) noexcept;
/// The same for a line that is complete, with its line feed: longer ones are dropped.
void write_formatted_line(std::string_view program,
                          std::string_view line,
                          int to = STDERR_FILENO) noexcept;

}  // namespace gpushm::app
