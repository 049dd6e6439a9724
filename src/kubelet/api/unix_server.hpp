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

/// A gRPC server on a Unix socket, which answers from the constructor on. gRPC replaces what has
/// the path when it binds, and removes the path when it ends, even if it is another's by then: use
/// paths that no other process uses.
///
/// Distinct objects: safe. Shared objects: unsafe, except `is_reachable`.
class unix_server {
 public:
  /// `services` are not owned and must outlive the server. Throws `error`: invalid_argument for a
  /// path of over 107 bytes, system_error when it cannot be bound.
  unix_server(std::string path, const std::vector<grpc::Service*>& services);
  unix_server(const unix_server&) = delete;
  unix_server& operator=(const unix_server&) = delete;
  /// `stop`s, and gives calls that run still half a second.
  ~unix_server();

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  /// The path still leads to this server: nobody removed or replaced the socket.
  [[nodiscard]] bool is_reachable() const noexcept;
  /// Takes no more calls, waits for those that run until `patience` is over, then cancels them.
  /// Streams run until their service ends them: tell it before.
  void stop(std::chrono::milliseconds patience);

 private:
  std::string path_;
  std::unique_ptr<grpc::Server> server_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace gpushm::kubelet
