// SPDX-License-Identifier: Apache-2.0
// Primary contexts and each thread's stack of current contexts.
#include <vector>

#include "tests/support/fake_driver/state.hpp"
#include "tests/support/fake_driver/streams.hpp"

using namespace gpushm;
using namespace gpushm::cuda;
using gpushm::fake::entry;
using gpushm::fake::state;

namespace {

// The back is current. Null entries are allowed: "no context" can be pushed, too.
thread_local std::vector<fake::context*> stack;

CUcontext as_handle(fake::context* context) {
  return reinterpret_cast<CUcontext>(context);
}

// Null unless `handle` is a retained primary context, or one that a reset destroyed: a destroyed
// context can still be made current, and the calls after that fail.
fake::context* find_context(CUcontext handle) {
  for (const auto& context : state().contexts) {
    if (as_handle(context.get()) == handle && (context->retained > 0 || context->destroyed)) {
      return context.get();
    }
  }
  return nullptr;
}

// Contexts own the memory of cuMemAlloc and opened handles, but not chunks and pools.
void remove_memory_of(std::size_t gpu) {
  auto& ranges = state().ranges.all();
  for (auto at = ranges.begin(); at != ranges.end();) {
    const fake::range& each = at->second;
    const bool is_removed = each.context == gpu && (each.kind == fake::range_kind::legacy ||
                                                    each.kind == fake::range_kind::opened);
    at = is_removed ? ranges.erase(at) : std::next(at);
  }
}

}  // namespace

fake::context* fake::current_context() noexcept {
  fake::context* const current = stack.empty() ? nullptr : stack.back();
  return current != nullptr && current->retained > 0 ? current : nullptr;
}

CUresult fake::why_no_context() noexcept {
  const fake::context* const current = stack.empty() ? nullptr : stack.back();
  return current != nullptr && current->destroyed ? CUDA_ERROR_CONTEXT_IS_DESTROYED
                                                  : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuda::cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  return entry("cuDevicePrimaryCtxRetain", [&] {
    fake::driver_state& now = state();
    const std::lock_guard lock(now.mutex);
    const std::size_t gpu = now.gpu_of(device);
    if (gpu == now.gpus.size()) {
      return CUDA_ERROR_INVALID_DEVICE;
    }
    fake::context& created = *now.contexts[gpu];
    if (++created.retained == 1) {
      created.destroyed = false;
      created.id = ++now.last_context_id;
    }
    *context = as_handle(&created);
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

CUresult cuda::cuDevicePrimaryCtxGetState(CUdevice device, unsigned int* flags, int* active) {
  return entry("cuDevicePrimaryCtxGetState", [&] {
    fake::driver_state& now = state();
    const std::lock_guard lock(now.mutex);
    const std::size_t gpu = now.gpu_of(device);
    if (gpu == now.gpus.size()) {
      return CUDA_ERROR_INVALID_DEVICE;
    }
    if (flags == nullptr || active == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *flags = 0;
    *active = now.contexts[gpu]->retained > 0 ? 1 : 0;
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuDevicePrimaryCtxReset_v2(CUdevice device) {
  return entry("cuDevicePrimaryCtxReset_v2", [&] {
    fake::driver_state& now = state();
    std::size_t gpu = 0;
    {
      const std::lock_guard lock(now.mutex);
      gpu = now.gpu_of(device);
      if (gpu == now.gpus.size()) {
        return CUDA_ERROR_INVALID_DEVICE;
      }
      // Every user that retains the context loses it.
      fake::context& context = *now.contexts[gpu];
      if (context.retained.exchange(0) > 0) {
        context.destroyed = true;
      }
    }
    fake::end_streams_of(gpu);
    const std::lock_guard lock(now.mutex);
    remove_memory_of(gpu);
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuCtxGetId(CUcontext context, unsigned long long* id) {
  return entry("cuCtxGetId", [&] {
    const std::lock_guard lock(state().mutex);
    if (id == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const fake::context* const current =
        context == nullptr ? fake::current_context() : find_context(context);
    if (current == nullptr) {
      return context == nullptr ? fake::why_no_context() : CUDA_ERROR_INVALID_CONTEXT;
    }
    if (current->destroyed) {
      return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    *id = current->id;
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuCtxGetCurrent(CUcontext* context) {
  return entry("cuCtxGetCurrent", [&] {
    const std::lock_guard lock(state().mutex);
    fake::context* const top = stack.empty() ? nullptr : stack.back();
    *context =
        top != nullptr && top->destroyed ? as_handle(top) : as_handle(fake::current_context());
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuCtxSetCurrent(CUcontext context) {
  return entry("cuCtxSetCurrent", [&] {
    const std::lock_guard lock(state().mutex);
    fake::context* const current = find_context(context);
    if (context != nullptr && current == nullptr) {
      return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (!stack.empty()) {
      stack.pop_back();
    }
    if (current != nullptr) {
      stack.push_back(current);
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuCtxPushCurrent_v2(CUcontext context) {
  return entry("cuCtxPushCurrent_v2", [&] {
    const std::lock_guard lock(state().mutex);
    fake::context* const current = find_context(context);
    if (current == nullptr) {
      return CUDA_ERROR_INVALID_CONTEXT;
    }
    stack.push_back(current);
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
      return fake::why_no_context();
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
        return fake::why_no_context();
      }
      gpu = current->gpu;
    }
    return fake::drain_streams_of(gpu);
  });
}
