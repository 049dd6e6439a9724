// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "gpu/driver/cuda_abi.hpp"

namespace gpushm::fence_rounds {

/// Throws std::runtime_error with the driver's text for anything but success.
void check(cuda::CUresult result, const char* call);

/// A kernel that writes repeatedly: thread i stores the GPU's clock at word i of `where`, for i
/// below `words`, until `limit_cycles` have passed. Compiled by the driver from PTX.
///
/// Distinct objects: safe. Shared objects: safe (immutable). Lives until the process ends.
class write_kernel {
 public:
  /// In the current context. Throws std::runtime_error.
  write_kernel();

  /// Enqueues; does not wait. 256 threads a block.
  void launch(cuda::CUstream stream,
              cuda::CUdeviceptr where,
              std::uint32_t words,
              std::uint64_t limit_cycles,
              unsigned blocks) const;

 private:
  void* function_ = nullptr;
};

}  // namespace gpushm::fence_rounds
