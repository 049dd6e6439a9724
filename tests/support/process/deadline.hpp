// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/files/sanitizers.hpp"

namespace gpushm_testing {

using clock = std::chrono::steady_clock;

inline constexpr int timeout_factor = gpushm::base::under_sanitizer ? 5 : 1;

/// `timeout` for this build: instrumented programs get longer. For time limits of the tested
/// programs and for durations.
[[nodiscard]] constexpr std::chrono::milliseconds scaled_timeout(
    std::chrono::milliseconds timeout) {
  return timeout * timeout_factor;
}

/// The longest wait for something that takes less than `timeout` on an idle machine: compilers and
/// other tests may keep this one busy. Not for durations, which a test waits for whole.
[[nodiscard]] constexpr std::chrono::milliseconds wait_limit(std::chrono::milliseconds timeout) {
  return 3 * scaled_timeout(timeout);
}

/// The time at which a wait of `wait_limit(timeout)` ends.
[[nodiscard]] inline clock::time_point deadline_after(std::chrono::milliseconds timeout) {
  return clock::now() + wait_limit(timeout);
}

/// Time until `deadline`, never negative, in whole milliseconds rounded up: for poll(2).
[[nodiscard]] inline int milliseconds_until(clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - clock::now());
  return left.count() > 0 ? static_cast<int>(left.count()) : 0;
}

/// Polls `predicate` until it returns true (then true) or `wait_limit(timeout)` has passed (then
/// false). For conditions without an event, such as the number of open descriptors of another
/// process.
template <typename Predicate>
[[nodiscard]] bool eventually(Predicate&& predicate, std::chrono::milliseconds timeout) {
  const auto deadline = deadline_after(timeout);
  auto pause = std::chrono::microseconds(100);
  while (!predicate()) {
    if (clock::now() >= deadline) {
      return predicate();
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::microseconds(10'000));
  }
  return true;
}

}  // namespace gpushm_testing
