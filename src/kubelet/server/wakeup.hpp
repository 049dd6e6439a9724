// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/unique_fd.hpp"

namespace gpushm::kubelet {

/// Wakes a thread that polls (an eventfd).
///
/// Shared objects: safe.
class wakeup {
 public:
  /// Throws `error` (too_many_descriptors, system_error).
  wakeup();
  /// Readable from `signal` to `take`.
  [[nodiscard]] int fd() const noexcept { return event_.get(); }
  /// Does not block.
  void signal() const noexcept;
  void take() const noexcept;

 private:
  base::unique_fd event_;
};

}  // namespace gpushm::kubelet
