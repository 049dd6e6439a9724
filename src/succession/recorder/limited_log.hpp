// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>
#include <utility>

#include "gpushm/client.hpp"

namespace gpushm::succession {

/// Limits a log to `lines_per_second` and counts suppressed lines.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class line_limit {
 public:
  using clock = std::chrono::steady_clock;
  static constexpr std::uint64_t lines_per_second = 20;

  struct verdict {
    bool may_write = false;
    std::uint64_t suppressed = 0;  ///< to be reported before the line, when not 0
  };

  /// Decides about one more line. Precondition: `now` never decreases.
  [[nodiscard]] verdict next(clock::time_point now) noexcept {
    verdict result;
    if (now - second_ >= std::chrono::seconds(1)) {
      second_ = now;
      result.suppressed = std::exchange(suppressed_, 0);
      written_ = 0;
    }
    result.may_write = written_ < lines_per_second;
    ++(result.may_write ? written_ : suppressed_);
    return result;
  }
  /// Counts a line that could not be formatted.
  void count_suppressed() noexcept { ++suppressed_; }

 private:
  clock::time_point second_{};
  std::uint64_t written_ = 0;
  std::uint64_t suppressed_ = 0;
};

/// Passes a line that members can cause to the log, where a `member_log` is not at hand: at most
/// `line_limit::lines_per_second` of all domains together. Thread-safe. Does not block.
void log_about_members(log_level level, std::string_view text) noexcept;

/// Passes a line to the log that no member can cause again and again: of the start of a domain, of
/// the keeper's end. All other lines of the broker are about members, which a lint rule checks.
/// Thread-safe. Does not block.
void log_about_broker(log_level level, std::string_view text) noexcept;

/// Reports lines that a limit has suppressed, when not 0.
void report_suppressed(std::uint64_t lines);

}  // namespace gpushm::succession
