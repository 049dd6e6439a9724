// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "base/guarded_fd.hpp"

namespace gpushm::broker_detail {

/// Closes files of memory on a thread of its own: the last close of a memfd or of an export of the
/// driver frees the memory, which takes the kernel 0.2 s a GiB (docs/results). Only files that were
/// found to be such: a close that might never return is the porter's.
///
/// Distinct objects: safe. Shared objects: `close` unsafe; runs on the broker's strand.
class closer {
 public:
  closer();
  closer(const closer&) = delete;
  closer& operator=(const closer&) = delete;
  /// Waits up to `patience` until everything is closed; what is left then is closed later.
  ~closer();

  /// Does not block. Closes them here when there is no memory for a note.
  void close(std::vector<base::guarded_fd> files) noexcept;

 private:
  static constexpr std::chrono::seconds patience{2};
  struct state;
  std::shared_ptr<state> state_;
};

}  // namespace gpushm::broker_detail
