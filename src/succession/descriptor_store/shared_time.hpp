// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>

namespace gpushm::keeper {

/// A point of time, or never.
class shared_time {
 public:
  using clock = std::chrono::steady_clock;
  void set(clock::time_point time) noexcept { since_start_ = time.time_since_epoch().count(); }
  void reset() noexcept { since_start_ = 0; }
  explicit operator bool() const noexcept { return since_start_ != 0; }
  [[nodiscard]] clock::time_point get() const noexcept {
    return clock::time_point(clock::duration(since_start_));
  }
  [[nodiscard]] bool is_past(clock::time_point now) const noexcept { return *this && now >= get(); }

 private:
  std::atomic<clock::rep> since_start_;
};

}  // namespace gpushm::keeper
