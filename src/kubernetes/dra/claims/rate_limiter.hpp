// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace gpushm::dra {

/// Rate limiter: a burst of `burst` actions, and one per `interval` in the long run.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class rate_limiter {
 public:
  using clock = std::chrono::steady_clock;

  /// Precondition: `burst` and `interval` are not zero.
  rate_limiter(unsigned burst, clock::duration interval) noexcept
      : interval_(interval), slack_(interval * (burst - 1)) {}

  /// Returns whether the action may be done at `now`; if so, counts it as done.
  [[nodiscard]] bool take(clock::time_point now = clock::now()) noexcept {
    const clock::time_point due = due_ > now ? due_ : now;
    if (due - now > slack_) {
      return false;
    }
    due_ = due + interval_;
    return true;
  }

 private:
  clock::duration interval_;
  clock::duration slack_;
  clock::time_point due_{};  ///< when the next action would be due without bursts
};

}  // namespace gpushm::dra
