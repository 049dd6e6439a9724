// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "stop.hpp"
#include "timeout.hpp"

namespace gpushm_python {

/// One call at a time, for objects of the library that allow no more: each caller waits for its
/// turn no longer than its own timeout, and as long as nothing cancels it. Without the GIL. In a
/// forked child there are no turns: the library refuses the calls.
///
/// Thread-safety: shared objects: safe.
class turn {
 public:
  [[nodiscard]] bool try_begin() {
    if (is_of_another_process()) {
      return true;
    }
    const std::lock_guard lock(mutex_);
    return take();
  }
  /// Returns false on timeout, or if cancelled.
  [[nodiscard]] bool begin(std::int64_t timeout_ms, const call_stop& stop) {
    if (is_of_another_process()) {
      return true;
    }
    const deadline end(timeout_ms);
    std::unique_lock lock(mutex_);
    while (!take()) {
      const std::int64_t left = end.left_ms();
      if (left == 0 || stop.is_requested()) {
        return false;
      }
      // In parts, because a stop cannot wake it.
      changed_.wait_for(lock, std::chrono::milliseconds(std::min(left, slice_ms)));
    }
    return true;
  }
  void end() {
    if (is_of_another_process()) {
      return;
    }
    const std::lock_guard lock(mutex_);
    is_taken_ = false;
    changed_.notify_one();
  }

 private:
  [[nodiscard]] bool is_of_another_process() const { return ::getpid() != process_; }
  bool take() {
    if (is_taken_) {
      return false;
    }
    is_taken_ = true;
    return true;
  }

  const pid_t process_ = ::getpid();
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_taken_ = false;
};

}  // namespace gpushm_python
