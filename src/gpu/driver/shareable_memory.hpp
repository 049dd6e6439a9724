// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "gpu/driver/cuda_abi.hpp"
#include "gpu/driver/devices.hpp"
#include "gpu/driver/owners.hpp"

namespace gpushm::driver {

// Physical memory shared as POSIX file descriptors. Allocated for GPUDirect RDMA if its GPU
// supports that: RDMA libraries (verbs, UCX, NVSHMEM, gdrcopy) reject other memory, and it cannot
// be enabled later. No allocation fails because of it: if the driver rejects gpuDirectRDMACapable,
// memory is allocated without it, and the first time in a process this is logged.
//
// Thread-safe. Throw `error`: driver_unavailable, forked.

/// Properties of such memory on `device`; `allocFlags.gpuDirectRDMACapable` is 1 if the device
/// reports support in cuMemCreate.
[[nodiscard]] cuda::CUmemAllocationProp shareable_properties(cuda::CUdevice device);

/// cuMemGetAllocationGranularity, the recommended one, in bytes. Clears gpuDirectRDMACapable in
/// `properties` if the driver rejects it.
[[nodiscard]] cuda::CUresult shareable_granularity(const gpu& gpu,
                                                   cuda::CUmemAllocationProp& properties,
                                                   std::size_t* granularity_bytes);

/// cuMemCreate into `memory`. Clears gpuDirectRDMACapable in `properties` if the driver rejects it.
/// Also checks whether the memory has the requested properties, and logs a difference.
[[nodiscard]] cuda::CUresult create_shareable(const gpu& gpu,
                                              cuda::CUmemAllocationProp& properties,
                                              std::size_t size_bytes,
                                              unique_allocation& memory);

}  // namespace gpushm::driver
