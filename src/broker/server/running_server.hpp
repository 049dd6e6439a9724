// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <semaphore>
#include <thread>

#include "broker/server/server.hpp"

namespace gpushm::broker_detail {

/// A server on a thread of its own.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe, except `get`.
class running_server {
 public:
  /// Blocks until clients can connect. `before_first` runs in the thread before it handles the
  /// first request, and what it posts runs before that; it must return. Throws as server's
  /// constructor.
  running_server(const broker_options& options,
                 std::shared_ptr<core::process_budget> shared,
                 std::optional<successor_options> successors = {},
                 std::function<void(server&)> before_first = {});
  running_server(const running_server&) = delete;
  running_server& operator=(const running_server&) = delete;
  /// Stops it, and blocks until it has.
  ~running_server();

  [[nodiscard]] server& get() noexcept { return server_; }
  [[nodiscard]] const server& get() const noexcept { return server_; }

 private:
  void on_ready();

  server server_;
  std::function<void(server&)> before_first_;
  std::binary_semaphore ready_{0};
  std::jthread thread_;  // joined before the server is destroyed
};

}  // namespace gpushm::broker_detail
