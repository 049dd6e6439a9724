// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "driver/cuda_abi.hpp"

namespace gpushm::streams {

/// A stream of the library that signals what other streams of one context have done: they go on
/// with their work meanwhile, instead of waiting until the store is visible (measured on an H200:
/// a store takes a stream about as long as a copy of 6 MiB).
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class signal_stream {
 public:
  /// For the context of `stream`. Throws driver_error.
  signal_stream(cuda::CUstream stream, std::string_view object);
  signal_stream(const signal_stream&) = delete;
  signal_stream& operator=(const signal_stream&) = delete;
  /// What was signaled before is still stored.
  ~signal_stream();

  /// Whether `stream` belongs to its context, which still exists.
  [[nodiscard]] bool is_for(cuda::CUstream stream) const noexcept;
  [[nodiscard]] cuda::CUstream handle() const noexcept { return stream_; }
  /// Enqueues a signal behind what `stream` has been given, and behind earlier ones. Throws
  /// driver_error.
  void signal(cuda::CUstream stream,
              cuda::CUdeviceptr address,
              std::uint64_t value,
              std::string_view object);

 private:
  cuda::CUcontext context_ = nullptr;
  std::uint64_t life_ = 0;
  cuda::CUstream stream_ = nullptr;
  cuda::CUevent done_ = nullptr;  ///< each wait is for the record before it
};

}  // namespace gpushm::streams
