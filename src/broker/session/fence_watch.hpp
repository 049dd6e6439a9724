// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>

#include "broker/session/end_watch.hpp"
#include "gpushm/types.hpp"

namespace gpushm::broker_detail {

/// Reports when a process whose connection has ended can no longer write (docs/sharing.md, "The
/// fence"): once its pidfd and its life pipe report the end. After a delay instead if there is no
/// fence, if it is unproven, or if the process closed its life pipe by executing another program
/// and is still alive.
///
/// Runs on the thread of its `io_context`.
class fence_watch {
 public:
  /// `kind` none: `process` and `life` are ignored. They are not moved from if this throws
  /// std::bad_alloc.
  fence_watch(asio::io_context& io,
              fence kind,
              end_watch&& process,
              end_watch&& life,
              std::chrono::milliseconds delay);
  fence_watch(const fence_watch&) = delete;
  fence_watch& operator=(const fence_watch&) = delete;
  ~fence_watch();

  /// Calls `reached` once, and `waits` before that whenever the awaited condition changes. Never
  /// from within this call. Throws std::bad_alloc; call it again then, or `reached` may never be
  /// called.
  void wait(std::function<void()> reached, std::function<void(fence_wait)> waits);

 private:
  struct state;
  std::shared_ptr<state> state_;
};

}  // namespace gpushm::broker_detail
