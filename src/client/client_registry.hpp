// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <string>

#include "base/fork_guard.hpp"
#include "client/client_impl.hpp"

namespace gpushm::detail {

/// The clients that this process has because of bytes that it imported, one a socket: a client
/// stays as long as anything imported through it lives, and the latest ones stay with what they
/// keep mapped, so that the next import from there is one of a warm client.
///
/// Distinct objects: safe. Shared objects: safe.
class client_registry {
 public:
  /// Clients that stay although nothing that came through them lives: a process that reads bytes
  /// of a node's few brokers keeps them all, and one that reads of many keeps few connections.
  static constexpr std::size_t most_idle = 4;

  /// The process's; never destroyed.
  static client_registry& instance();

  /// Connects where there is none, or the one that is there was made before this process was
  /// forked. Blocks while it connects, and others with it only for the same broker's answer. Throws
  /// as `client::connect`.
  [[nodiscard]] std::shared_ptr<client_impl> get(const std::string& socket_path);

 private:
  [[nodiscard]] std::shared_ptr<client_impl> find(const std::string& socket_path);
  void use(const std::shared_ptr<client_impl>& used, std::list<std::shared_ptr<client_impl>>& out);

  base::fork_safe_mutex mutex_;
  std::map<std::string, std::weak_ptr<client_impl>> all_;
  std::list<std::shared_ptr<client_impl>> latest_;  ///< the latest first
};

}  // namespace gpushm::detail
