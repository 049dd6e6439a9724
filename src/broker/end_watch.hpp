// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <asio/io_context.hpp>
#include <functional>
#include <memory>

#include "base/guarded_fd.hpp"

namespace gpushm::broker_detail {

/// Says when a descriptor reports the end of what it stands for: a pidfd that of a process, a life
/// pipe that of all who have its other end. Move-only. Runs on the thread of its `io_context`.
class end_watch {
 public:
  end_watch() noexcept = default;
  /// Of an empty `file` (the kernel has no pidfd for the process) nothing is ever heard.
  end_watch(asio::io_context& io, base::guarded_fd file);

  [[nodiscard]] explicit operator bool() const noexcept { return state_ != nullptr; }
  /// Calls `ended` once, after the end, and never after `stop`. Instead of the one of the call
  /// before, if that has not been called.
  void wait(std::function<void()> ended);
  /// Closes the descriptor and forgets the call. No effect the second time.
  void stop() noexcept;

 private:
  struct state;
  static void arm(const std::shared_ptr<state>& of);

  std::shared_ptr<state> state_;
};

}  // namespace gpushm::broker_detail
