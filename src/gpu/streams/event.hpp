// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "gpu/driver/cuda_abi.hpp"

namespace gpushm::streams {

/// A number that distinguishes a stream from every other one that this process has had: a handle is
/// reused after its stream was destroyed, and the handles of default streams stand for one stream
/// in each context or thread. Of the calling thread for the per-thread stream. Throws as
/// cuda_driver::check. Thread-safe.
[[nodiscard]] std::uint64_t stream_id(cuda::CUstream stream,
                                      std::string_view operation,
                                      std::string_view object);

/// Throws invalid_argument if calls on `stream` are recorded for a graph: for what has another
/// meaning in each launch. Thread-safe.
void check_not_captured(cuda::CUstream stream, std::string_view operation, std::string_view object);

/// A point in the work of a stream: reached when the stream has done everything that was enqueued
/// before `record`. A CUDA event of this process, without timing, taken from a pool.
/// Copies refer to the same point. Does not need the stream to exist any longer.
///
/// Thread-safety: distinct objects: safe; shared objects: safe to read.
class stream_point {
 public:
  /// Precondition: the stream is not captured. Does not wait for the stream. Throws
  /// driver_unavailable, forked, driver_error; then nothing is recorded.
  [[nodiscard]] static stream_point record(cuda::CUstream stream,
                                           std::string_view operation,
                                           std::string_view object);

  /// True also if the context of the stream no longer exists: its work is never done then.
  [[nodiscard]] bool is_reached() const noexcept;
  /// `stream` waits for this point before it does what is enqueued next. Does not wait itself.
  /// Throws driver_unavailable, forked, driver_error.
  void enqueue_wait(cuda::CUstream stream,
                    std::string_view operation,
                    std::string_view object) const;
  /// Returns false if the point is not reached by `deadline`. Polls.
  [[nodiscard]] bool wait(std::chrono::steady_clock::time_point deadline) const noexcept;
  /// Whether the context of the stream no longer exists. Without the driver.
  [[nodiscard]] bool is_lost() const noexcept;
  /// The context of the stream.
  [[nodiscard]] cuda::CUcontext context() const noexcept;

 private:
  struct event;
  explicit stream_point(std::shared_ptr<const event> recorded) noexcept
      : recorded_(std::move(recorded)) {}

  std::shared_ptr<const event> recorded_;
};

}  // namespace gpushm::streams
