// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <utility>

#include "base/files/unique_fd.hpp"
#include "gpu/driver/cuda_abi.hpp"
#include "tests/support/fake_driver/gpu_file.hpp"

namespace gpushm::fake {

/// A physical allocation of virtual memory management; exists as long as its handles and mappings.
struct chunk {
  chunk() = default;
  chunk(const chunk&) = delete;
  chunk& operator=(const chunk&) = delete;
  ~chunk();

  std::size_t gpu = 0;
  std::size_t size_bytes = 0;
  void* view =
      nullptr;  ///< all of it, inaccessible: keeps the memory and is the source of mappings
  base::unique_fd exportable;  ///< of chunks created here with a handle type
  /// An imported chunk has none and cannot be exported.
  cuda::CUmemAllocationHandleType handle_types = cuda::CU_MEM_HANDLE_TYPE_NONE;
  bool rdma = false;     ///< created here with gpuDirectRDMACapable; false for imports
  bool counted = false;  ///< in driver_state::own_bytes
  /// Access rights of each GPU (index into driver_state::gpus) by the base of the mapping.
  std::map<cuda::CUdeviceptr, std::map<std::size_t, cuda::CUmemAccess_flags>> access;
};

/// Base and size of the reservation that contains `pointer`; zeros when there is none.
/// Precondition: the state's mutex is locked.
[[nodiscard]] std::pair<cuda::CUdeviceptr, std::size_t> reservation_of(cuda::CUdeviceptr pointer);

}  // namespace gpushm::fake
