// SPDX-License-Identifier: Apache-2.0
#pragma once

// Inside an agent: shared by the files that execute orders.

#include <cstdint>

#include "base/files/unique_fd.hpp"
#include "gpu/driver/cuda.hpp"
#include "tests/conformance/driver_facts_agent.hpp"

namespace gpushm::conformance {

/// The first failing call of an order stops it and becomes the answer.
struct failed {
  cuda::CUresult result;
};
inline void must(cuda::CUresult result) {
  if (result != cuda::CUDA_SUCCESS) {
    throw failed{result};
  }
}

inline void* as_shareable(int fd) {
  return reinterpret_cast<void*>(static_cast<std::intptr_t>(fd));
}

inline const driver::cuda_driver& cu() {
  return driver::cuda_driver::instance();
}

/// Executes the orders that name addresses, pools or the context; `io` is the order, and becomes
/// the answer. Returns the descriptor to reply with.
base::unique_fd execute_raw(message& io, int fd, cuda::CUdevice device);

}  // namespace gpushm::conformance
