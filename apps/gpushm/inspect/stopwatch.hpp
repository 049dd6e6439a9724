// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "gpu/driver/cuda.hpp"

namespace gpushm::cli {

/// A stream of the current context and two events that time the work queued between them.
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class stopwatch {
 public:
  /// `operation` is named in errors and must outlive the object. Throws `error`.
  explicit stopwatch(const char* operation);
  stopwatch(const stopwatch&) = delete;
  stopwatch& operator=(const stopwatch&) = delete;
  ~stopwatch();

  /// The duration of `count` sequential copies by the GPU's clock, in seconds. Throws `error`.
  [[nodiscard]] double seconds_of(cuda::CUdeviceptr target,
                                  cuda::CUdeviceptr source,
                                  std::uint64_t size_bytes,
                                  int count);

 private:
  void check(cuda::CUresult result, const char* call) const;

  const char* operation_;
  const driver::cuda_driver& cu_;
  cuda::CUstream stream_ = nullptr;
  cuda::CUevent start_ = nullptr;
  cuda::CUevent end_ = nullptr;
};

}  // namespace gpushm::cli
