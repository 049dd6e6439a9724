// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <string>

#include "base/files/fork_guard.hpp"
#include "client/timeline/timelines.hpp"

namespace gpushm::client_detail {

/// The clients that this process has for imported tickets, one per socket. A client is destroyed
/// with the last object imported through it: otherwise its threads would run while the process
/// exits.
///
/// Thread-safety: distinct objects: safe; shared objects: safe.
class client_registry {
 public:
  /// The only object in the process; never destroyed.
  static client_registry& instance();

  /// Connects if there is no client, or if it was created before this process was forked. Blocks
  /// while it connects, or while another thread connects to the same broker. Throws as
  /// `client::connect`.
  [[nodiscard]] std::shared_ptr<timelines> get(const std::string& socket_path);

 private:
  [[nodiscard]] std::shared_ptr<timelines> find(const std::string& socket_path);

  base::fork_safe_mutex mutex_;
  std::map<std::string, std::weak_ptr<timelines>> all_;
};

}  // namespace gpushm::client_detail
