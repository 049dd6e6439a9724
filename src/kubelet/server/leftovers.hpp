// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>

#include "kubelet/server/kubelet_socket.hpp"

namespace gpushm::kubelet {

/// Removes the sockets that plugins of ours left in a directory when they were killed. Nobody
/// answers at those; nor does anybody for a moment at one that is just being made, so each is tried
/// twice.
///
/// Distinct objects: safe. Shared objects: unsafe.
class leftovers {
 public:
  using clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds between_tries{1};

  /// Sockets "PREFIX-….sock" in `directory`.
  leftovers(std::string directory, const std::string& prefix);

  /// The directory may have others now: begins anew.
  void look(clock::time_point now);
  /// When `advance` has something to do.
  [[nodiscard]] clock::time_point due() const noexcept { return due_; }
  void advance(clock::time_point now);

 private:
  [[nodiscard]] std::map<std::string, socket_identity> unanswered() const;

  std::string directory_;
  std::string beginning_;
  std::map<std::string, socket_identity> suspects_;
  clock::time_point due_ = clock::time_point::max();
};

}  // namespace gpushm::kubelet
