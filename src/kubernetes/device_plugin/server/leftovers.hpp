// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>

#include "kubernetes/device_plugin/server/kubelet_socket.hpp"

namespace gpushm::device_plugin {

/// Removes the sockets that killed gpushm plugins left in a directory. No process listens on them;
/// this is also true for a moment of a socket that is being created, so each is checked twice.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class leftovers {
 public:
  using clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds recheck_delay{1};

  /// Sockets "PREFIX-….sock" in `directory`.
  leftovers(std::string directory, const std::string& prefix);

  /// Rescans the directory, whose contents may have changed.
  void scan(clock::time_point now);
  /// When `advance` must be called next.
  [[nodiscard]] clock::time_point due() const noexcept { return due_; }
  void advance(clock::time_point now);

 private:
  [[nodiscard]] std::map<std::string, socket_identity> without_listener() const;

  std::string directory_;
  std::string name_prefix_;
  std::map<std::string, socket_identity> suspects_;
  clock::time_point due_ = clock::time_point::max();
};

}  // namespace gpushm::device_plugin
