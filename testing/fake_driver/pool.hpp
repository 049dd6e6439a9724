// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "driver/cuda_abi.hpp"
#include "testing/fake_driver/address_space.hpp"

// The caller of each holds the state's mutex.
namespace gpushm::fake {

/// Gives back memory that came from a pool, an importer's too.
cuda::CUresult free_pool_memory(cuda::CUdeviceptr pointer);
/// The pool that a range of kind `pool` came from.
[[nodiscard]] cuda::CUmemoryPool pool_of(const range& memory);
/// What a range of kind `pool` may be exported as: nothing where the pool was imported.
[[nodiscard]] cuda::CUmemAllocationHandleType pool_handle_types(const range& memory);
/// Returns to the devices what is free in this process's pools and that nobody maps.
void trim_pools();

}  // namespace gpushm::fake
