// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "driver/cuda_abi.hpp"

namespace gpushm::driver {

/// The primary context of a GPU, retained for the life of the process: making one costs 150 ms, and
/// letting it go while static destructors run is not safe. When somebody has reset the device since
/// (cudaDeviceReset), it is retained again. Blocks while the driver makes one. Thread-safe. Throws
/// `error`: driver_unavailable, forked, driver_error, out_of_memory.
[[nodiscard]] cuda::CUcontext primary_context(cuda::CUdevice device,
                                              std::string_view operation,
                                              std::string_view object);

/// Tells one life of a context from the next: legacy mappings end with a reset, and the
/// same CUcontext then stands for a new one. 0 when the context is gone or the driver cannot say.
/// Never throws; thread-safe.
[[nodiscard]] std::uint64_t context_life(cuda::CUcontext context) noexcept;

}  // namespace gpushm::driver
