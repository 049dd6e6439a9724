// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <asio/io_context.hpp>
#include <functional>
#include <memory>

#include "base/files/guarded_fd.hpp"

namespace gpushm::broker_detail {

/// Reports the end of what a descriptor refers to: for a pidfd, of its process; for a life pipe, of
/// all processes that have its other end. Move-only. Runs on the thread of its `io_context`.
class end_watch {
 public:
  end_watch() noexcept = default;
  /// An empty `file` (the kernel has no pidfd for the process) never reports an end.
  end_watch(asio::io_context& io, base::guarded_fd file);

  [[nodiscard]] explicit operator bool() const noexcept { return state_ != nullptr; }
  /// Calls `ended` once, after the end, and never after `stop`. Replaces the callback of an earlier
  /// `wait` that has not been called.
  void wait(std::function<void()> ended);
  /// Closes the descriptor and discards the callback. No effect the second time.
  void stop() noexcept;

 private:
  struct state;
  static void arm(const std::shared_ptr<state>& state);

  std::shared_ptr<state> state_;
};

}  // namespace gpushm::broker_detail
