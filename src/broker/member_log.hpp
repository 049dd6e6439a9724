// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "broker/connection.hpp"
#include "gpushm/client.hpp"

namespace gpushm::broker_detail {

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

/// The broker's log of member activity. Limited in lines per second, so that members cannot fill
/// it.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe. Runs on the broker's strand.
class member_log {
 public:
  explicit member_log(std::string domain) : domain_(std::move(domain)) {}

  /// Throws std::bad_alloc.
  void write(std::string_view text);
  /// Throws std::bad_alloc.
  void dropped(const connection& of, std::string_view why);

  /// Runs `job` and logs what it throws: one member's failure, or a lack of memory, must not end
  /// the loop.
  template <typename Job>
  void guarded(Job&& job) noexcept {
    try {
      job();
    } catch (const std::bad_alloc&) {
      limit_.count_suppressed();
    } catch (const std::exception& why) {
      try {
        write(why.what());
      } catch (const std::bad_alloc&) {
        limit_.count_suppressed();
      }
    }
  }

 private:
  std::string domain_;
  line_limit limit_;
};

/// Passes a line that members can cause to the log, from where there is no `member_log`: at most
/// `line_limit::lines_per_second` of all domains together. Thread-safe. Does not block.
void log_about_members(log_level level, std::string_view text) noexcept;

/// Passes a line to the log that no member can cause again and again: of the start of a domain, of
/// the keeper's end. All other lines in this folder are about members, which a lint rule checks.
/// Thread-safe. Does not block.
void log_about_broker(log_level level, std::string_view text) noexcept;

}  // namespace gpushm::broker_detail
