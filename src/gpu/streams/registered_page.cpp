// SPDX-License-Identifier: Apache-2.0
#include "gpu/streams/registered_page.hpp"

#include "gpu/driver/cuda.hpp"
#include "gpu/driver/owners.hpp"
#include "gpu/driver/primary_context.hpp"
#include "gpu/streams/retired_pages.hpp"
#include "gpu/streams/stream_operations.hpp"
#include "gpushm/error.hpp"

namespace gpushm::streams {

namespace {

using driver::cuda_driver;

/// The primary context of the GPU of `stream`.
cuda::CUcontext context_of(const cuda_driver& cu,
                           cuda::CUstream stream,
                           std::string_view operation,
                           std::string_view object) {
  cuda::CUcontext context = nullptr;
  const cuda::CUresult result = cu->cuStreamGetCtx(stream, &context);
  if (result == cuda::CUDA_ERROR_INVALID_CONTEXT) {
    throw error(errc::driver_error,
                operation,
                object,
                "no CUDA context is current on this thread",
                "select a GPU first (cudaSetDevice), or pass a stream that is not the default one");
  }
  cuda_driver::check(result, operation, object, "cuStreamGetCtx");
  cuda::CUdevice device = 0;
  {
    const driver::context_scope scope(context, operation, object);
    cuda_driver::check(cu->cuCtxGetDevice(&device), operation, object, "cuCtxGetDevice");
  }
  return driver::primary_context(device, operation, object);
}

}  // namespace

bool registered_page::is_registered() const noexcept {
  return address_.load(std::memory_order_acquire) != 0 &&
         driver::context_life(context_.load(std::memory_order_relaxed)) ==
             life_.load(std::memory_order_relaxed);
}

cuda::CUdeviceptr registered_page::address_for(cuda::CUstream stream,
                                               std::uint32_t timeline,
                                               std::string_view operation,
                                               std::string_view object) {
  if (!is_registered()) {
    register_once(stream, operation, object);
  }
  return address_.load(std::memory_order_relaxed) + timeline * sizeof(std::uint64_t);
}

void registered_page::register_once(cuda::CUstream stream,
                                    std::string_view operation,
                                    std::string_view object) {
  const std::lock_guard lock(mutex_);
  if (is_registered()) {
    return;  // by another thread
  }
  if (is_capturing(stream)) {
    throw error(errc::invalid_argument,
                operation,
                object,
                "its memory is not registered with CUDA, which is not possible during a capture",
                "prepare it before the capture begins (gpushm_timeline_prepare)");
  }
  retired_pages::of_process().free_if_idle();
  const cuda_driver& cu = cuda_driver::instance();
  const cuda::CUcontext context = context_of(cu, stream, operation, object);
  const driver::context_scope scope(context, operation, object);
  const unsigned int flags = cuda::memhostregister_portable | cuda::memhostregister_devicemap |
                             (writable_ ? 0 : cuda::memhostregister_read_only);
  const cuda::CUresult registered = cu->cuMemHostRegister_v2(first_, bytes_, flags);
  // It can outlive the context in which it was registered.
  if (registered != cuda::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED) {
    check_operation(registered, operation, object, "cuMemHostRegister");
  }
  cuda::CUdeviceptr address = 0;
  const cuda::CUresult mapped = cu->cuMemHostGetDevicePointer_v2(&address, first_, 0);
  if (mapped != cuda::CUDA_SUCCESS) {
    cuda_driver::note(cu->cuMemHostUnregister(first_), "cuMemHostUnregister");
    check_operation(mapped, operation, object, "cuMemHostGetDevicePointer");
  }
  context_.store(context, std::memory_order_relaxed);
  life_.store(driver::context_life(context), std::memory_order_relaxed);
  address_.store(address, std::memory_order_release);
}

registered_page::~registered_page() {
  const cuda_driver* const cu =
      address_.load(std::memory_order_acquire) == 0 ? nullptr : cuda_driver::try_instance();
  if (cu == nullptr || !is_registered()) {
    return;
  }
  if ((*cu)->cuCtxPushCurrent_v2(context_.load(std::memory_order_relaxed)) == cuda::CUDA_SUCCESS) {
    cuda_driver::note((*cu)->cuMemHostUnregister(first_), "cuMemHostUnregister");
    cuda::CUcontext popped = nullptr;
    cuda_driver::note((*cu)->cuCtxPopCurrent_v2(&popped), "cuCtxPopCurrent");
  }
}

}  // namespace gpushm::streams
