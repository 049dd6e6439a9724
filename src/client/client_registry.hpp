// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <string>

#include "base/fork_guard.hpp"
#include "client/client_impl.hpp"

namespace gpushm::detail {

/// The clients that this process has because of bytes that it imported, one a socket: a client
/// stays as long as anything imported through it lives. None stays longer: its threads would run
/// while the process exits.
///
/// Distinct objects: safe. Shared objects: safe.
class client_registry {
 public:
  /// The process's; never destroyed.
  static client_registry& instance();

  /// Connects where there is none, or the one that is there was made before this process was
  /// forked. Blocks while it connects, and others with it only for the same broker's answer. Throws
  /// as `client::connect`.
  [[nodiscard]] std::shared_ptr<client_impl> get(const std::string& socket_path);

 private:
  [[nodiscard]] std::shared_ptr<client_impl> find(const std::string& socket_path);

  base::fork_safe_mutex mutex_;
  std::map<std::string, std::weak_ptr<client_impl>> all_;
};

}  // namespace gpushm::detail
