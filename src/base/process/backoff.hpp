// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <random>

namespace gpushm::base {

/// Delay before the next attempt after a failure: doubles after each failure, up to a limit, and is
/// randomly shortened by up to a quarter, so that many clients do not retry at the same time.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class backoff {
 public:
  using duration = std::chrono::milliseconds;

  explicit backoff(duration first = duration(100), duration longest = duration(30'000)) noexcept
      : first_(first), longest_(longest), next_(first) {}

  /// Returns the delay before the next attempt.
  [[nodiscard]] duration next() {
    const duration full = next_;
    next_ = std::min(next_ * 2, longest_);
    std::uniform_int_distribution<duration::rep> less(0, full.count() / 4);
    return full - duration(less(random_));
  }
  /// Call after a success.
  void reset() noexcept { next_ = first_; }

 private:
  duration first_;
  duration longest_;
  duration next_;
  std::minstd_rand random_{std::random_device{}()};
};

}  // namespace gpushm::base
