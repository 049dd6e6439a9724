// SPDX-License-Identifier: Apache-2.0
#include "gpu/driver/primary_context.hpp"

#include <map>
#include <mutex>

#include "gpu/driver/cuda.hpp"
#include "gpu/driver/owners.hpp"

namespace gpushm::driver {

namespace {

bool is_active(const cuda_driver& cu, cuda::CUdevice device) {
  unsigned int flags = 0;
  int active = 0;
  return cu->cuDevicePrimaryCtxGetState(device, &flags, &active) == cuda::CUDA_SUCCESS &&
         active != 0;
}

}  // namespace

cuda::CUcontext primary_context(cuda::CUdevice device,
                                std::string_view operation,
                                std::string_view object) {
  static std::mutex mutex;
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): never destroyed, and never released
  static auto* const contexts = new std::map<cuda::CUdevice, primary_context_value>;
  const cuda_driver& cu = cuda_driver::instance();
  const std::lock_guard lock(mutex);
  primary_context_value& kept = (*contexts)[device];
  if (kept.context == nullptr || !is_active(cu, device)) {
    cuda_driver::check(cu->cuDevicePrimaryCtxRetain(&kept.context, device),
                       operation,
                       object,
                       "cuDevicePrimaryCtxRetain");
  }
  return kept.context;
}

std::uint64_t context_life(cuda::CUcontext context) noexcept {
  unsigned long long id = 0;
  const cuda_driver* cu = cuda_driver::try_instance();
  if (cu == nullptr || (*cu)->cuCtxGetId(context, &id) != cuda::CUDA_SUCCESS) {
    return 0;
  }
  return id;
}

}  // namespace gpushm::driver
