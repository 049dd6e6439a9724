// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>

namespace gpushm::base {

/// `timeout` after `start`, limited to the clock's maximum, which is never reached (as with
/// `milliseconds::max()`); negative timeouts are 0.
[[nodiscard]] constexpr std::chrono::steady_clock::time_point later(
    std::chrono::steady_clock::time_point start, std::chrono::milliseconds timeout) noexcept {
  using clock = std::chrono::steady_clock;
  // Both sides in whole milliseconds: the difference in nanoseconds cannot overflow for times that
  // the clock can represent.
  const auto most = std::chrono::floor<std::chrono::milliseconds>(clock::time_point::max() - start);
  if (timeout >= most) {
    return clock::time_point::max();
  }
  return start + std::max(timeout, std::chrono::milliseconds(0));
}

/// `timeout` from now.
[[nodiscard]] inline std::chrono::steady_clock::time_point deadline_after(
    std::chrono::milliseconds timeout) noexcept {
  return later(std::chrono::steady_clock::now(), timeout);
}

/// The time left until `deadline`, rounded up, never negative.
[[nodiscard]] inline std::chrono::milliseconds time_left(
    std::chrono::steady_clock::time_point deadline) noexcept {
  const auto now = std::chrono::steady_clock::now();
  if (deadline <= now) {
    return std::chrono::milliseconds(0);
  }
  return std::chrono::ceil<std::chrono::milliseconds>(deadline - now);
}

}  // namespace gpushm::base
