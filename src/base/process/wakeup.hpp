// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/files/unique_fd.hpp"

namespace gpushm::base {

/// Wakes a thread that polls (an eventfd).
///
/// Thread-safety: shared objects: safe.
class wakeup {
 public:
  /// Throws `error` (too_many_descriptors, system_error), which names `operation`.
  explicit wakeup(const char* operation);
  /// Readable from `signal` to `take`.
  [[nodiscard]] int fd() const noexcept { return event_.get(); }
  /// Does not block.
  void signal() const noexcept;
  /// Resets the signal. Returns false if `signal` was not called since the last time.
  [[nodiscard]] bool take() const noexcept;

 private:
  unique_fd event_;
};

}  // namespace gpushm::base
