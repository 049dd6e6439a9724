// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "gpu/driver/cuda_abi.hpp"
#include "tests/support/fake_driver/extra_functions.hpp"

namespace gpushm::fake {

/// A queue of work with a thread. The thread exits when the stream is destroyed and its work is
/// done, or immediately when its context is destroyed.
/// Thread-safety: shared objects: safe.
class stream : public std::enable_shared_from_this<stream> {
 public:
  /// Receives a flag that is set when the context is destroyed; the work must then return soon.
  using work = std::function<void(const std::atomic<bool>& ended)>;

  /// Work that a graph contains: `run`, or waits and writes of words.
  struct node {
    work run;
    std::vector<cuda::CUstreamBatchMemOpParams> operations;
  };
  using nodes = std::vector<std::shared_ptr<const node>>;

  stream(std::size_t gpu, bool blocking) : gpu_(gpu), blocking_(blocking), id_(next_id()) {}
  void start();
  /// While the stream is captured: adds a node instead.
  void enqueue(work item);
  void enqueue(node item);
  /// Returns false if it is captured already.
  bool begin_capture();
  /// Returns nullopt if it is not captured.
  std::optional<nodes> end_capture();
  /// The nodes so far; nullopt: it is not captured.
  [[nodiscard]] std::optional<nodes> captured();
  /// Blocks until the queue is empty. Returns CUDA_ERROR_CONTEXT_IS_DESTROYED if the context was
  /// destroyed before.
  cuda::CUresult drain();
  [[nodiscard]] bool idle();
  void finish();
  /// Drops queued work and waits for running work, which returns soon.
  void end();

  [[nodiscard]] std::size_t gpu() const noexcept { return gpu_; }
  /// Whether work without a stream waits for this stream.
  [[nodiscard]] bool blocking() const noexcept { return blocking_; }
  /// Of no other stream of the process, also after this one is destroyed.
  [[nodiscard]] unsigned long long id() const noexcept { return id_; }

 private:
  void run();
  [[nodiscard]] static unsigned long long next_id() noexcept {
    static std::atomic<unsigned long long> last{0};
    return ++last;
  }

  const std::size_t gpu_;
  const bool blocking_;
  const unsigned long long id_;
  std::atomic<bool> ended_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<work> queue_;
  std::optional<nodes> captured_;
  bool busy_ = false;
  bool finishing_ = false;
};

/// The stream of a handle; for the null handle, the current context's stream; null when neither
/// exists. Also of the handles of the legacy and of the per-thread default stream.
[[nodiscard]] std::shared_ptr<stream> find_stream(cuda::CUstream handle);
/// The handle that a function with the suffix _ptsz is called with.
[[nodiscard]] inline cuda::CUstream per_thread(cuda::CUstream handle) noexcept {
  return handle == nullptr ? cuda::stream_per_thread : handle;
}
/// Blocks until every stream of the process is empty.
cuda::CUresult drain_all_streams();
/// Blocks until every stream of the GPU is empty.
cuda::CUresult drain_streams_of(std::size_t gpu);
/// Whether a stream is captured that the legacy default stream of that GPU is ordered with.
bool captures_blocking_stream(std::size_t gpu);
/// Blocks until the current context's blocking streams are empty: copies and sets without a stream
/// wait for these.
cuda::CUresult drain_blocking_streams();
/// Called when the context of the GPU is destroyed: its streams drop their work.
void end_streams_of(std::size_t gpu);

}  // namespace gpushm::fake
