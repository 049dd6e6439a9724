// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/sanitizers.hpp"

namespace gpushm_testing {

using clock = std::chrono::steady_clock;

inline constexpr int timeout_factor = gpushm::base::under_sanitizer ? 5 : 1;

/// `timeout` for this build: instrumented programs get longer.
[[nodiscard]] constexpr std::chrono::milliseconds scaled_timeout(
    std::chrono::milliseconds timeout) {
  return timeout * timeout_factor;
}

/// The time at which `timeout`, stretched by `scaled_timeout`, expires.
[[nodiscard]] inline clock::time_point deadline_after(std::chrono::milliseconds timeout) {
  return clock::now() + scaled_timeout(timeout);
}

/// Time until `deadline`, never negative, in whole milliseconds rounded up: for poll(2).
[[nodiscard]] inline int milliseconds_until(clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - clock::now());
  return left.count() > 0 ? static_cast<int>(left.count()) : 0;
}

/// Polls `predicate` until it returns true (then true) or `timeout` expires (then false). For
/// conditions without an event, such as the number of open descriptors of another process.
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
