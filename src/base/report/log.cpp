// SPDX-License-Identifier: Apache-2.0
#include "base/report/log.hpp"

#include <new>
#include <string>
#include <string_view>

#include "base/text/text.hpp"

namespace gpushm {

namespace {

/// The outermost `held_log_lines` of this thread.
thread_local base::held_log_lines* holding = nullptr;

void deliver(log_level level, std::string_view text) noexcept {
  gpushm_private_log(static_cast<gpushm_log_level>(level), {text.data(), text.size()});
}

}  // namespace

namespace base {

void log(log_level level, std::string_view text) noexcept {
  if (holding != nullptr) {
    holding->keep(level, text);
  } else {
    deliver(level, text);
  }
}

held_log_lines::held_log_lines() noexcept {
  if (holding == nullptr) {
    holding = this;
  }
}

held_log_lines::~held_log_lines() {
  if (holding != this) {
    return;
  }
  holding = nullptr;  // the sink's callees may log too
  for (const line& each : lines_) {
    deliver(each.level, each.text);
  }
  if (dropped_ != 0) {
    try {
      deliver(log_level::warning, std::to_string(dropped_) + " more lines were dropped");
    } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): the count is lost too
    }
  }
}

void held_log_lines::keep(log_level level, std::string_view text) noexcept {
  constexpr std::size_t max_lines = 256;
  try {
    if (lines_.size() < max_lines) {
      lines_.push_back({level, std::string(text)});
      return;
    }
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): counted below
  }
  ++dropped_;
}

}  // namespace base
}  // namespace gpushm
