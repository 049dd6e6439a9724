// SPDX-License-Identifier: Apache-2.0
// Primary contexts and each thread's stack of current ones.
#include <vector>

#include "fake_driver/state.hpp"
#include "fake_driver/streams.hpp"

using namespace gpushm;
using namespace gpushm::cuda;
using gpushm::fake::entry;
using gpushm::fake::state;

namespace {

// Back is current. Null entries are allowed: "no context" can be pushed too.
thread_local std::vector<fake::context*> stack;

CUcontext as_handle(fake::context* context) {
  return reinterpret_cast<CUcontext>(context);
}

// Null unless `handle` is a primary context that somebody retains.
fake::context* retained(CUcontext handle) {
  for (const auto& context : state().contexts) {
    if (as_handle(context.get()) == handle && context->retained > 0) {
      return context.get();
    }
  }
  return nullptr;
}

}  // namespace

fake::context* fake::current_context() noexcept {
  fake::context* const current = stack.empty() ? nullptr : stack.back();
  return current != nullptr && current->retained > 0 ? current : nullptr;
}

CUresult cuda::cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  return entry("cuDevicePrimaryCtxRetain", [&] {
    fake::driver_state& now = state();
    const std::lock_guard lock(now.mutex);
    const std::size_t gpu = now.gpu_of(device);
    if (gpu == now.gpus.size()) {
      return CUDA_ERROR_INVALID_DEVICE;
    }
    ++now.contexts[gpu]->retained;
    *context = as_handle(now.contexts[gpu].get());
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  return entry("cuDevicePrimaryCtxRelease_v2", [&] {
    fake::driver_state& now = state();
    std::size_t gpu = 0;
    {
      const std::lock_guard lock(now.mutex);
      gpu = now.gpu_of(device);
      if (gpu == now.gpus.size()) {
        return CUDA_ERROR_INVALID_DEVICE;
      }
      if (now.contexts[gpu]->retained == 0) {
        return CUDA_ERROR_INVALID_CONTEXT;
      }
      if (--now.contexts[gpu]->retained > 0) {
        return CUDA_SUCCESS;
      }
    }
    fake::end_streams_of(gpu);
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuCtxGetCurrent(CUcontext* context) {
  return entry("cuCtxGetCurrent", [&] {
    const std::lock_guard lock(state().mutex);
    *context = as_handle(fake::current_context());
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuCtxSetCurrent(CUcontext context) {
  return entry("cuCtxSetCurrent", [&] {
    const std::lock_guard lock(state().mutex);
    fake::context* const found = retained(context);
    if (context != nullptr && found == nullptr) {
      return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (!stack.empty()) {
      stack.pop_back();
    }
    if (found != nullptr) {
      stack.push_back(found);
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuCtxPushCurrent_v2(CUcontext context) {
  return entry("cuCtxPushCurrent_v2", [&] {
    const std::lock_guard lock(state().mutex);
    fake::context* const found = retained(context);
    if (found == nullptr) {
      return CUDA_ERROR_INVALID_CONTEXT;
    }
    stack.push_back(found);
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuCtxPopCurrent_v2(CUcontext* context) {
  return entry("cuCtxPopCurrent_v2", [&] {
    const std::lock_guard lock(state().mutex);
    if (stack.empty()) {
      return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (context != nullptr) {
      *context = as_handle(stack.back());
    }
    stack.pop_back();
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuCtxGetDevice(CUdevice* device) {
  return entry("cuCtxGetDevice", [&] {
    const std::lock_guard lock(state().mutex);
    const fake::context* const current = fake::current_context();
    if (current == nullptr) {
      return CUDA_ERROR_INVALID_CONTEXT;
    }
    *device = state().device_of(current->gpu);
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuCtxSynchronize() {
  return entry("cuCtxSynchronize", [] {
    std::size_t gpu = 0;
    {
      const std::lock_guard lock(state().mutex);
      const fake::context* const current = fake::current_context();
      if (current == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
      }
      gpu = current->gpu;
    }
    return fake::drain_streams_of(gpu);
  });
}
