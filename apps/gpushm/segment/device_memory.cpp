// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/segment/device_memory.hpp"

#include "gpu/driver/owners.hpp"
#include "gpu/driver/primary_context.hpp"

namespace gpushm::cli {

using driver::cuda_driver;

device_memory::device_memory(const driver::gpu& where,
                             std::uint64_t size_bytes,
                             std::string_view object)
    : context_(driver::primary_context(where.handle, "allocate", object)) {
  const driver::context_scope scope(context_, "allocate", object);
  cuda_driver::check(cuda_driver::instance()->cuMemAlloc_v2(&first_, size_bytes),
                     "allocate",
                     object,
                     "cuMemAlloc");
}

device_memory::~device_memory() {
  driver::close_quietly("cuMemFree", [&](const cuda_driver& cu) {
    cuda::CUresult result = cu->cuCtxPushCurrent_v2(context_);
    if (result == cuda::CUDA_SUCCESS) {
      result = cu->cuMemFree_v2(first_);
      cuda::CUcontext popped = nullptr;
      static_cast<void>(cu->cuCtxPopCurrent_v2(&popped));
    }
    return result;
  });
}

void* device_memory::data() const noexcept {
  return reinterpret_cast<void*>(  // NOLINT(performance-no-int-to-ptr): CUDA's pointer type
      static_cast<std::uintptr_t>(first_));
}

}  // namespace gpushm::cli
