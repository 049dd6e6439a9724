// SPDX-License-Identifier: Apache-2.0
#include "streams/signal_stream.hpp"

#include "driver/cuda.hpp"
#include "driver/owners.hpp"
#include "driver/primary_context.hpp"
#include "streams/stream_operations.hpp"

namespace gpushm::streams {

using driver::cuda_driver;

signal_stream::signal_stream(cuda::CUstream stream, std::string_view object) {
  const cuda_driver& cu = cuda_driver::instance();
  cuda_driver::check(cu->cuStreamGetCtx(stream, &context_), "publish", object, "cuStreamGetCtx");
  life_ = driver::context_life(context_);
  const driver::context_scope scope(context_, "publish", object);
  cuda_driver::check(cu->cuStreamCreate(&stream_, cuda::CU_STREAM_NON_BLOCKING),
                     "publish",
                     object,
                     "cuStreamCreate");
  const cuda::CUresult created = cu->cuEventCreate(&done_, cuda::CU_EVENT_DISABLE_TIMING);
  if (created != cuda::CUDA_SUCCESS) {
    cuda_driver::note(cu->cuStreamDestroy_v2(stream_), "cuStreamDestroy");
    cuda_driver::check(created, "publish", object, "cuEventCreate");
  }
}

bool signal_stream::is_for(cuda::CUstream stream) const noexcept {
  cuda::CUcontext context = nullptr;
  const cuda_driver* const cu = cuda_driver::try_instance();
  return cu != nullptr && (*cu)->cuStreamGetCtx(stream, &context) == cuda::CUDA_SUCCESS &&
         context == context_ && driver::context_life(context) == life_;
}

void signal_stream::signal(cuda::CUstream stream,
                           cuda::CUdeviceptr address,
                           std::uint64_t value,
                           std::string_view object) {
  const cuda_driver& cu = cuda_driver::instance();
  cuda_driver::check(cu->cuEventRecord(done_, stream), "publish", object, "cuEventRecord");
  cuda_driver::check(
      cu->cuStreamWaitEvent(stream_, done_, 0), "publish", object, "cuStreamWaitEvent");
  enqueue_signal(stream_, address, value, object);
}

signal_stream::~signal_stream() {
  const cuda_driver* const cu = cuda_driver::try_instance();
  if (cu == nullptr || driver::context_life(context_) != life_) {
    return;  // destroyed with its context
  }
  cuda_driver::note((*cu)->cuEventDestroy_v2(done_), "cuEventDestroy");
  cuda_driver::note((*cu)->cuStreamDestroy_v2(stream_), "cuStreamDestroy");
}

}  // namespace gpushm::streams
