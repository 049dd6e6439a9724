// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "broker/descriptor_shelf.hpp"
#include "broker/kept_fd.hpp"

namespace gpushm::broker_detail {

/// Closes memory files on a separate thread: the last close of a memfd or of a driver export frees
/// the memory, which takes the kernel 0.2 s per GiB (docs/results). Only for verified memory files:
/// a close that might never return goes to the descriptor receiver.
///
/// Thread-safety: distinct objects: safe; shared objects: `close` unsafe. Runs on the broker's
/// strand.
class closer {
 public:
  /// `shelf`: where the keeper's copies are removed first, so that its close frees no memory.
  explicit closer(std::optional<descriptor_shelf> shelf = {});
  closer(const closer&) = delete;
  closer& operator=(const closer&) = delete;
  /// Blocks up to `close_timeout` until everything is closed; the rest is closed later.
  ~closer();

  /// Closes the files after the next `flush`. Closes them at once, in the calling thread, if memory
  /// is short.
  void close(std::vector<kept_fd> files) noexcept;
  /// Call when no record refers to them any longer. Does not block.
  void flush() noexcept;
  /// From here on, the keeper's copies stay: records of a successor refer to them.
  void leave_to_successor() noexcept;

 private:
  static constexpr std::chrono::seconds close_timeout{2};
  struct state;
  std::shared_ptr<state> state_;
  std::vector<kept_fd> held_;
};

}  // namespace gpushm::broker_detail
