// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/server.h>
#include <sys/types.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace grpc {
class Service;
}

namespace gpushm::kubelet {

/// A gRPC server on a Unix socket; the constructor starts it. gRPC replaces an existing file at the
/// path when it binds, and removes the path when it ends, even if another process has replaced it:
/// use paths that no other process uses.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe, except `is_reachable`.
class unix_server {
 public:
  /// `services` are not owned and must outlive the server. Throws `error`: invalid_argument for a
  /// path of over 107 bytes, system_error when it cannot be bound.
  unix_server(std::string path, const std::vector<grpc::Service*>& services);
  unix_server(const unix_server&) = delete;
  unix_server& operator=(const unix_server&) = delete;
  /// Calls `stop` with a timeout of half a second.
  ~unix_server();

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  /// Whether the path still leads to this server: the socket was not removed or replaced.
  [[nodiscard]] bool is_reachable() const noexcept;
  /// Accepts no more calls, blocks for up to `timeout` until those in progress have ended, then
  /// cancels them. Streams run until their service ends them: end them first.
  void stop(std::chrono::milliseconds timeout);

 private:
  std::string path_;
  std::unique_ptr<grpc::Server> server_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace gpushm::kubelet
