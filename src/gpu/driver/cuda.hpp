// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "gpu/driver/cuda_abi.hpp"

namespace gpushm::driver {

/// "CUDA_ERROR_OUT_OF_MEMORY (2)".
[[nodiscard]] std::string result_text(cuda::CUresult result);

/// The result of loading a driver library, successful or not.
struct library_outcome {
  std::string path;      ///< of the file, with links resolved; empty: none was found
  int init_result = -1;  ///< of cuInit or nvmlInit; -1: not reached
};

/// The CUDA driver of this process: libcuda.so.1, opened with dlopen and initialised once, never
/// closed (other threads and static destructors may still use it at exit). A function that an older
/// driver lacks returns CUDA_ERROR_NOT_SUPPORTED. Call functions as `cu->cuMemCreate(...)` and pass
/// their results to `check`.
///
/// Thread-safety: singleton; shared objects: safe (immutable).
class cuda_driver {
 public:
  /// Returns the initialised driver; the first call blocks for as long as cuInit takes. The outcome
  /// of the first call is kept, including a failure. Throws `error`: driver_unavailable (no
  /// library, no device, cuInit failed), forked (initialised before this process was forked: CUDA
  /// does not survive a fork).
  [[nodiscard]] static const cuda_driver& instance();
  /// As `instance`, but null instead of an error.
  [[nodiscard]] static const cuda_driver* try_instance() noexcept;
  /// The outcome of the first call; makes that call if necessary. Never throws.
  [[nodiscard]] static const library_outcome& outcome() noexcept;

  cuda_driver(const cuda_driver&) = delete;
  cuda_driver& operator=(const cuda_driver&) = delete;

  const cuda::functions* operator->() const noexcept { return &functions_; }
  /// From cuDriverGetVersion: 13000 is CUDA 13.0.
  [[nodiscard]] int version() const noexcept { return version_; }

  /// Throws `error` unless `result` is CUDA_SUCCESS: out_of_memory, or driver_error for the rest.
  /// `call` is the function's name, for the cause: "cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (2)".
  static void check(cuda::CUresult result,
                    std::string_view operation,
                    std::string_view object,
                    std::string_view call);
  /// For destructors: logs a failure, unless it reports that the driver is already deinitialised.
  static void note(cuda::CUresult result, std::string_view call) noexcept;

 private:
  cuda_driver() = default;
  ~cuda_driver() = default;
  static cuda_driver load(library_outcome& details);

  cuda_driver(cuda_driver&&) noexcept = default;

  cuda::functions functions_;
  int version_ = 0;
  friend struct loaded_cuda;
};

}  // namespace gpushm::driver
