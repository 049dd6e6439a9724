// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include "driver/cuda_abi.hpp"

namespace gpushm::fake {

/// A queue of work with a thread of its own. The thread ends when the stream is destroyed and its
/// work is done, or at once when its context goes.
///
/// Shared objects: safe.
class stream : public std::enable_shared_from_this<stream> {
 public:
  /// Work gets the flag that says that the context is gone; it must then return soon.
  using work = std::function<void(const std::atomic<bool>& ended)>;

  stream(std::size_t gpu, bool blocking) : gpu_(gpu), blocking_(blocking) {}
  void start();
  void enqueue(work item);
  /// Blocks until the queue is empty. CUDA_ERROR_CONTEXT_IS_DESTROYED when the context went first.
  cuda::CUresult drain();
  [[nodiscard]] bool idle();
  void finish();
  /// Drops what is queued and waits for what runs, which returns soon.
  void end();

  [[nodiscard]] std::size_t gpu() const noexcept { return gpu_; }
  /// Whether work that names no stream waits for this one.
  [[nodiscard]] bool blocking() const noexcept { return blocking_; }

 private:
  void run();

  const std::size_t gpu_;
  const bool blocking_;
  std::atomic<bool> ended_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<work> queue_;
  bool busy_ = false;
  bool finishing_ = false;
};

/// The stream that a handle means, that of the current context for the null handle; null when
/// neither exists.
[[nodiscard]] std::shared_ptr<stream> find_stream(cuda::CUstream handle);
/// Blocks until every stream of the GPU is empty.
cuda::CUresult drain_streams_of(std::size_t gpu);
/// What copies and sets without a stream wait for: the current context's blocking streams.
cuda::CUresult drain_blocking_streams();
/// The context of the GPU is gone: its streams drop their work.
void end_streams_of(std::size_t gpu);

}  // namespace gpushm::fake
