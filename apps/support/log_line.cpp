// SPDX-License-Identifier: Apache-2.0
#include "apps/support/log_line.hpp"

#include <fmt/core.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <climits>
#include <utility>

#include "base/files/syscall.hpp"

namespace gpushm::app {

namespace {

constexpr std::array<std::string_view, 4> level_words{"debug", "info", "warning", "error"};

std::string_view word_of(log_level level) noexcept {
  return level_words.at(
      std::min(static_cast<std::size_t>(level), std::size_t{level_words.size() - 1}));
}

constexpr bool continues_character(char c) noexcept {
  return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U;
}

/// A line that is no longer than a pipe takes at once.
class line_buffer {
 public:
  /// `end`: what the line ends with, also if it is shortened.
  explicit line_buffer(std::string_view end) noexcept
      : end_(end), room_(bytes_.size() - end.size()) {}

  /// Returns false if there is no room for all of it. Then nothing is appended.
  bool append(std::string_view part) noexcept {
    if (part.size() > room_ - size_) {
      return false;
    }
    std::copy(part.begin(), part.end(), bytes_.begin() + static_cast<std::ptrdiff_t>(size_));
    size_ += part.size();
    return true;
  }
  template <typename... Values>
  void append_formatted(fmt::format_string<Values...> format, Values&&... values) noexcept {
    const auto written = fmt::format_to_n(
        bytes_.data() + size_, room_ - size_, format, std::forward<Values>(values)...);
    size_ += std::min(written.size, room_ - size_);
  }
  /// As much of it as there is room for.
  void append_text(std::string_view text, log_format format) noexcept {
    for (const char each : text) {
      if (!append(escaped(each, format))) {
        if (continues_character(each)) {  // the rest of a character that is cut
          while (size_ != 0 && continues_character(bytes_.at(size_ - 1))) {
            --size_;
          }
          size_ -= size_ != 0 ? 1 : 0;
        }
        return;
      }
    }
  }
  [[nodiscard]] std::string_view finish() noexcept {
    std::copy(end_.begin(), end_.end(), bytes_.begin() + static_cast<std::ptrdiff_t>(size_));
    return {bytes_.data(), size_ + end_.size()};
  }

 private:
  std::string_view escaped(char c, log_format format) noexcept {
    if (c == '\n') {
      return format == log_format::json ? R"(\n)" : R"(\x0a)";
    }
    if (format == log_format::json && (c == '"' || c == '\\')) {
      return c == '"' ? R"(\")" : R"(\\)";
    }
    if (static_cast<unsigned char>(c) < 0x20U) {
      return "?";
    }
    one_ = c;
    return {&one_, 1};
  }

  std::array<char, PIPE_BUF> bytes_{};
  std::string_view end_;
  std::size_t room_;
  std::size_t size_ = 0;
  char one_ = 0;
};

void append_time(line_buffer& file) noexcept {
  using namespace std::chrono;
  const auto now = floor<milliseconds>(system_clock::now());
  const auto day = floor<days>(now);
  const year_month_day date(day);
  const hh_mm_ss time(now - day);
  file.append_formatted("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z",
                        static_cast<int>(date.year()),
                        static_cast<unsigned>(date.month()),
                        static_cast<unsigned>(date.day()),
                        time.hours().count(),
                        time.minutes().count(),
                        time.seconds().count(),
                        time.subseconds().count());
}

/// A pipe that is writable has room for PIPE_BUF bytes (pipe(7)).
bool write_whole(std::string_view line, int file) noexcept {
  pollfd entry{file, POLLOUT, 0};
  // POLLERR: nobody reads it, and SIGPIPE would end this program.
  return base::retry([&] { return ::poll(&entry, 1, 0); }) > 0 && entry.revents == POLLOUT &&
         base::retry([&] { return ::write(file, line.data(), line.size()); }) >= 0;
}

}  // namespace

std::optional<log_level> log_level_of(std::string_view word) noexcept {
  const auto* const found = std::find(level_words.begin(), level_words.end(), word);
  if (found == level_words.end()) {
    return std::nullopt;
  }
  return static_cast<log_level>(found - level_words.begin());
}

program_log::program_log(std::string program, log_level least, log_format format, int file)
    : program_(std::move(program)),
      least_(least),
      format_(format),
      to_(file),
      has_colours_(format == log_format::text && ::isatty(file) == 1) {}

bool program_log::write_line(log_level level, std::string_view text) const noexcept {
  if (format_ == log_format::json) {
    line_buffer line("\"}\n");
    line.append(R"({"time":")");
    append_time(line);
    line.append_formatted(R"(","level":"{}","program":"{}","message":")", word_of(level), program_);
    line.append_text(text, format_);
    return write_whole(line.finish(), to_);
  }
  line_buffer line("\n");
  append_time(line);
  const bool is_coloured = has_colours_ && level >= log_level::warning;
  line.append_formatted(" {}{:<7}{} {}: ",
                        !is_coloured                  ? ""
                        : level == log_level::warning ? "\033[33m"
                                                      : "\033[31m",
                        word_of(level),
                        is_coloured ? "\033[m" : "",
                        program_);
  line.append_text(text, format_);
  return write_whole(line.finish(), to_);
}

void program_log::write(log_level level, std::string_view text) noexcept {
  if (level < least_) {
    return;
  }
  const std::lock_guard lock(mutex_);
  if (dropped_ != 0) {
    std::array<char, 64> note{};
    const auto end =
        fmt::format_to_n(note.data(), note.size(), "{} lines were dropped", dropped_).size;
    if (!write_line(log_level::warning, {note.data(), std::min(end, note.size())})) {
      ++dropped_;
      return;
    }
    dropped_ = 0;
  }
  if (!write_line(level, text)) {
    ++dropped_;
  }
}

}  // namespace gpushm::app
