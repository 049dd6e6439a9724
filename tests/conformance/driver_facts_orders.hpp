// SPDX-License-Identifier: Apache-2.0
#pragma once

// Inside an agent: what the files share that do as it is told.

#include <cstdint>

#include "base/unique_fd.hpp"
#include "driver/cuda.hpp"
#include "tests/conformance/driver_facts_agent.hpp"

namespace gpushm::conformance {

/// The first failure of a chain of calls stops it and becomes the answer.
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

/// Does the orders that name addresses, pools or the context; `said` is order and answer. Returns
/// the descriptor to answer with.
base::unique_fd obey_raw(message& said, int fd, cuda::CUdevice device);

}  // namespace gpushm::conformance
