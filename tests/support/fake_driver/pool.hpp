// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpu/driver/cuda_abi.hpp"
#include "tests/support/fake_driver/address_space.hpp"

// Precondition of each: the state's mutex is locked.
namespace gpushm::fake {

/// Frees memory that came from a pool, also in an importer.
cuda::CUresult free_pool_memory(cuda::CUdeviceptr pointer);
/// The pool of a range of kind `pool`.
[[nodiscard]] cuda::CUmemoryPool pool_of(const range& memory);
/// Handle types for the export of a range of kind `pool`: none where the pool was imported.
[[nodiscard]] cuda::CUmemAllocationHandleType pool_handle_types(const range& memory);
/// Returns the free memory of this process's pools that no process maps to the devices.
void trim_pools();

}  // namespace gpushm::fake
