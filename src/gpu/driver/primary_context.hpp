// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "gpu/driver/cuda_abi.hpp"

namespace gpushm::driver {

/// The primary context of a GPU, retained for the life of the process: creating one takes 150 ms,
/// and releasing it while static destructors run is not safe. If the device has been reset since
/// (cudaDeviceReset), it is retained again. Blocks while the driver creates one. Thread-safe.
/// Throws `error`: driver_unavailable, forked, driver_error, out_of_memory.
[[nodiscard]] cuda::CUcontext primary_context(cuda::CUdevice device,
                                              std::string_view operation,
                                              std::string_view object);

/// An id that distinguishes successive contexts: a reset destroys legacy mappings, and the same
/// CUcontext value then refers to a new context. 0 if the context no longer exists or the driver
/// cannot report it. Never throws; thread-safe.
[[nodiscard]] std::uint64_t context_life(cuda::CUcontext context) noexcept;

}  // namespace gpushm::driver
