// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "base/files/fork_guard.hpp"
#include "client/segment/client_impl.hpp"

namespace gpushm::client_detail {

/// The client of `gpushm_resolve_fd`, for programs that have no handle of ours: one a process, from
/// the first call until the process exits. A forked child gets its own.
///
/// Thread-safety: shared objects: safe.
class process_client {
 public:
  /// The only object in the process; never destroyed.
  static process_client& instance();

  /// Connects if there is no client. Throws as `client::connect`.
  [[nodiscard]] std::shared_ptr<client_impl> get();
  /// At exit: the client's threads must not run while static objects are destroyed. No other is
  /// connected afterwards.
  void end() noexcept;

 private:
  base::fork_safe_mutex mutex_;
  std::shared_ptr<client_impl> client_;
  bool has_ended_ = false;
};

}  // namespace gpushm::client_detail
