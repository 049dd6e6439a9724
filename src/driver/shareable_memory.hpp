// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "driver/cuda_abi.hpp"
#include "driver/devices.hpp"
#include "driver/owners.hpp"

namespace gpushm::driver {

// Physical memory that travels as POSIX file descriptors. GPUDirect RDMA may use it where its GPU
// supports that: RDMA libraries (verbs, UCX, NVSHMEM, gdrcopy) refuse other memory, and it cannot
// be added later. No allocation fails because of it: what the driver refuses with
// gpuDirectRDMACapable is done without, and the first time in a process the log says so.
//
// Thread-safe. Throw `error`: driver_unavailable, forked.

/// Properties of such memory on `device`; `allocFlags.gpuDirectRDMACapable` is 1 where the device
/// says that cuMemCreate takes it.
[[nodiscard]] cuda::CUmemAllocationProp shareable_properties(cuda::CUdevice device);

/// cuMemGetAllocationGranularity, the recommended one, in bytes. `properties` lose
/// gpuDirectRDMACapable when the driver refuses it.
[[nodiscard]] cuda::CUresult shareable_granularity(const gpu& on,
                                                   cuda::CUmemAllocationProp& properties,
                                                   std::size_t* granularity_bytes);

/// cuMemCreate into `memory`. `properties` lose gpuDirectRDMACapable when the driver refuses it.
/// Whether it made what it was asked for is asked too, and a difference is a line of the log.
[[nodiscard]] cuda::CUresult create_shareable(const gpu& on,
                                              cuda::CUmemAllocationProp& properties,
                                              std::size_t size_bytes,
                                              unique_allocation& memory);

}  // namespace gpushm::driver
