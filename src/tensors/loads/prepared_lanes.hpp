// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "gpushm/segment.hpp"
#include "tensors/loads/copy_lane.hpp"

namespace gpushm::tensors {

/// Lanes of a load to a GPU, which are opened by threads of their own beside the creation of the
/// segment: in a new context, 16 lanes take 10 to 13 ms on an H200. None for host memory.
///
/// Thread-safety: distinct objects: safe; shared objects: safe.
class prepared_lanes {
 public:
  /// Begins, and does not block. `device`: as `create_options::device`; if it cannot be used, the
  /// creation of the segment reports why. `name` is for errors.
  prepared_lanes(std::string device, unsigned lanes, std::string name);
  prepared_lanes(const prepared_lanes&) = delete;
  prepared_lanes& operator=(const prepared_lanes&) = delete;
  /// Blocks until all threads have ended.
  ~prepared_lanes() = default;

  /// A lane into `into`, which must exist longer: one that is prepared, for which this waits, or a
  /// new one if none is left for its GPU. Throws as `copy_lane::open`.
  [[nodiscard]] std::unique_ptr<copy_lane> take(segment& into, copy_lane::done report);

 private:
  /// Once for each lane, by its thread.
  void prepare() noexcept;

  const std::string device_;
  const std::string name_;
  std::mutex mutex_;
  std::condition_variable changed_;
  unsigned preparing_ = 0;
  std::vector<std::unique_ptr<copy_lane>> lanes_;
  std::vector<std::jthread> threads_;  // last: they use all others
};

}  // namespace gpushm::tensors
