// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "driver/cuda_abi.hpp"

namespace gpushm::fake {

/// Gives back memory that came from a pool, an importer's too. The caller holds the state's mutex.
cuda::CUresult free_pool_memory(cuda::CUdeviceptr pointer);

}  // namespace gpushm::fake
