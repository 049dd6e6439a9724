// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "tensors/loads/copy_lane.hpp"
#include "tensors/loads/load_job.hpp"
#include "tensors/loads/piece_reader.hpp"
#include "tensors/loads/run_reader.hpp"

namespace gpushm::tensors {

/// Reads and hashes the pieces of a model by several threads, and passes them to lanes.
///
/// Thread-safety: unsafe.
class filling {
 public:
  struct target {
    /// For each thread, called by it.
    std::function<std::unique_ptr<copy_lane>(copy_lane::done)> open_lane;
    std::uint64_t* hashes = nullptr;  ///< of all parts; must exist longer
    std::size_t first = 0;            ///< the first piece to read: all before it are complete
    /// All pieces before the number `complete` are complete, with these bytes. Must not throw.
    std::function<void(std::size_t complete, std::uint64_t bytes)> on_complete;
    bool is_load = true;  ///< `load_progress::is_here`
  };
  /// `job` must exist longer.
  filling(const job& job, target into);

  /// Blocks. Throws what a thread has thrown.
  void run();
  /// When the first lane was open, after `run`: its buffers are registered.
  [[nodiscard]] std::chrono::steady_clock::time_point first_lane() const noexcept {
    return first_lane_;
  }
  [[nodiscard]] std::chrono::steady_clock::time_point last_lane() const noexcept {
    return last_lane_;
  }
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
  void note_lane();
  /// In steps, so that what is hashed is still in the cache of the core that has read it.
  void copy_piece(copy_lane& lane, run_reader& runs, std::size_t index);
  /// All previous pieces are also complete: readers of the journal need no list.
  void complete(std::size_t index);
  void fail() noexcept;

  const job& job_;
  const target into_;
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
  std::chrono::steady_clock::time_point first_lane_;
  std::chrono::steady_clock::time_point last_lane_;
  std::chrono::steady_clock::time_point first_complete_;
  std::chrono::steady_clock::time_point last_complete_;
  std::vector<bool> is_done_;
  std::exception_ptr failure_;
};

}  // namespace gpushm::tensors
