// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>

#include "broker/end_watch.hpp"
#include "gpushm/types.hpp"

namespace gpushm::broker_detail {

/// Says when a process whose connection has ended can write nothing any more (docs/sharing.md, "The
/// fence"): once its pidfd and its life pipe report the end. A process that has executed another
/// program has lost its life pipe and lives: then, and where there is no fence or it is not proven,
/// after a delay.
///
/// Runs on the thread of its `io_context`.
class fence_watch {
 public:
  /// `kind` none: neither `process` nor `life` is looked at.
  fence_watch(asio::io_context& io,
              fence kind,
              end_watch process,
              end_watch life,
              std::chrono::milliseconds delay);
  fence_watch(const fence_watch&) = delete;
  fence_watch& operator=(const fence_watch&) = delete;
  ~fence_watch();

  /// Calls `reached` once, and `waits` before that whenever what is waited for changes. Never from
  /// within this call.
  void wait(std::function<void()> reached, std::function<void(fence_wait)> waits);

 private:
  struct state;
  std::shared_ptr<state> state_;
};

}  // namespace gpushm::broker_detail
