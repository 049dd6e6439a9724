// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <spdlog/sinks/base_sink.h>
#include <unistd.h>

#include <climits>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "apps/support/log_line.hpp"

namespace gpushm::app {

/// Standard error for spdlog, by `write_formatted_line`: a program goes on if its log is not read.
/// Texts of lines that are longer than PIPE_BUF are shortened. On a terminal, warnings and errors
/// have colours.
class stderr_sink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  /// `program`: before the number of dropped lines.
  explicit stderr_sink(std::string program) : program_(std::move(program)) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::details::log_msg whole = message;
    spdlog::memory_buf_t line;
    formatter_->format(whole, line);
    while (line.size() > PIPE_BUF && whole.payload.size() > 1) {
      whole.payload = {whole.payload.data(), whole.payload.size() / 2};
      line.clear();
      formatter_->format(whole, line);
    }
    std::string text(line.data(), line.size());
    if (is_terminal_ && whole.level >= spdlog::level::warn &&
        whole.color_range_end > whole.color_range_start) {
      text.insert(whole.color_range_end, "\033[m");
      text.insert(whole.color_range_start,
                  whole.level == spdlog::level::warn ? "\033[33m" : "\033[31m");
    }
    write_formatted_line(program_, text);
  }
  void flush_() override {}

  const std::string program_;
  const bool is_terminal_ = ::isatty(STDERR_FILENO) == 1;
};

}  // namespace gpushm::app
