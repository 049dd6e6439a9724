// SPDX-License-Identifier: Apache-2.0
#include "broker/member_log.hpp"

#include <mutex>
#include <new>

#include "base/log.hpp"

namespace gpushm::broker_detail {

namespace {

std::string text_of(const connection& of) {
  std::string text =
      of.peer.pid > 0 ? "pid " + std::to_string(of.peer.pid) : "a client with unknown pid";
  if (of.peer.uid_known) {
    text += ", uid " + std::to_string(of.peer.uid);
  }
  if (!text.ends_with(of.principal.key)) {
    text += ", " + of.principal.key;
  }
  return text;
}

void report_suppressed(std::uint64_t lines) {
  if (lines != 0) {
    base::log(log_level::warning, std::to_string(lines) + " more lines about members suppressed");
  }
}

}  // namespace

void member_log::write(std::string_view text) {
  const line_limit::verdict verdict = limit_.next(line_limit::clock::now());
  report_suppressed(verdict.suppressed);
  if (verdict.may_write) {
    base::log(log_level::warning, text);
  }
}

void member_log::dropped(const connection& of, std::string_view why) {
  std::string text = "dropped ";
  text += text_of(of);
  text += " in domain ";
  text += domain_;
  text += ": ";
  text += why;
  write(text);
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

}  // namespace gpushm::broker_detail
