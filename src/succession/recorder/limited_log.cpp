// SPDX-License-Identifier: Apache-2.0
#include "succession/recorder/limited_log.hpp"

#include <mutex>
#include <new>
#include <string>

#include "base/report/log.hpp"

namespace gpushm::succession {

void report_suppressed(std::uint64_t lines) {
  if (lines != 0) {
    base::log(log_level::warning, std::to_string(lines) + " more lines about members suppressed");
  }
}

void log_about_members(log_level level, std::string_view text) noexcept {
  static std::mutex mutex;
  static line_limit limit;
  line_limit::verdict verdict;
  {
    const std::lock_guard lock(mutex);
    verdict = limit.next(line_limit::clock::now());
  }
  try {
    report_suppressed(verdict.suppressed);
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): only their number is lost
  }
  if (verdict.may_write) {
    base::log(level, text);
  }
}

void log_about_broker(log_level level, std::string_view text) noexcept {
  base::log(level, text);
}

}  // namespace gpushm::succession
