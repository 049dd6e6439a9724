// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <vector>

#include "gpushm/segment.hpp"
#include "gpushm/timeline.hpp"
#include "weights/copy_lane.hpp"
#include "weights/load_job.hpp"
#include "weights/piece_reader.hpp"

namespace gpushm::weights {

/// Fills a segment by several threads, from the first piece that is not complete. All arguments
/// must outlive it.
///
/// Thread-safety: unsafe.
class filling {
 public:
  filling(const job& of, segment& into, const load_journal& journal, timeline& progress);

  /// Blocks. Throws what a thread has thrown.
  void run();
  /// When the first piece was complete, after `run`.
  [[nodiscard]] std::chrono::steady_clock::time_point first_complete() const noexcept {
    return first_complete_;
  }
  /// The same of the last piece: what follows is the end of the threads' lanes.
  [[nodiscard]] std::chrono::steady_clock::time_point last_complete() const noexcept {
    return last_complete_;
  }

 private:
  void work() noexcept;
  /// In steps, so that what is hashed is still in the cache of the core that has read it.
  void copy_piece(copy_lane& lane, std::size_t index);
  /// All pieces before it are complete, too: readers of the journal need no list.
  void complete(std::size_t index);
  void fail() noexcept;

  const job& job_;
  segment& into_;
  const load_journal& journal_;
  timeline& progress_;
  piece_reader reader_;
  const std::size_t first_;
  std::atomic<std::size_t> next_;
  std::atomic<bool> has_failed_{false};
  std::mutex mutex_;
  std::condition_variable ended_;
  unsigned running_ = 0;
  std::size_t complete_;
  std::uint64_t complete_bytes_ = 0;
  std::uint64_t resumed_bytes_ = 0;
  std::chrono::steady_clock::time_point first_complete_;
  std::chrono::steady_clock::time_point last_complete_;
  std::vector<bool> is_done_;
  std::exception_ptr failure_;
};

}  // namespace gpushm::weights
