// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <optional>

#include "base/files/unique_fd.hpp"

namespace gpushm::cli {

/// Lets a program continue in the background, in a session of its own. Thread-safety: one object a
/// process, which has one thread when it is created.
class detached {
 public:
  /// Forks. The parent blocks until the child calls `ready` or exits. Throws `error` (system_error,
  /// too_many_descriptors).
  detached();

  /// The status with which the parent exits: 0, or that of the child if it has exited before it was
  /// ready. Nullopt in the child.
  [[nodiscard]] std::optional<int> parent_status() const noexcept { return parent_status_; }
  detached(const detached&) = delete;
  detached& operator=(const detached&) = delete;
  /// In a child that is not ready: shows messages again, for the error that ends it.
  ~detached();

  /// In the child, whose standard streams are /dev/null at first, because threads with descriptor
  /// tables of their own keep copies of them, which would keep the caller's pipes open: uses those
  /// of the caller. Standard error always is the caller's if it is a file.
  void show_messages();
  /// In the child: closes the caller's terminal and pipes, and ends the parent.
  void ready();

 private:
  void hide_messages();

  base::unique_fd pipe_;
  base::unique_fd nothing_;
  std::array<base::unique_fd, 3> callers_;  ///< standard streams, by number
  std::optional<int> parent_status_;
};

}  // namespace gpushm::cli
