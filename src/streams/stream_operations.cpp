// SPDX-License-Identifier: Apache-2.0
#include "streams/stream_operations.hpp"

#include <algorithm>
#include <array>

#include "driver/cuda.hpp"

namespace gpushm::streams {

using driver::cuda_driver;

void enqueue_signal(cuda::CUstream stream,
                    cuda::CUdeviceptr address,
                    std::uint64_t value,
                    std::string_view object) {
  const cuda_driver& cu = cuda_driver::instance();
  cuda_driver::check(
      cu->cuStreamWriteValue64_v2(stream, address, value, cuda::CU_STREAM_WRITE_VALUE_DEFAULT),
      "signal",
      object,
      "cuStreamWriteValue64");
}

void enqueue_wait(cuda::CUstream stream,
                  cuda::CUdeviceptr address,
                  std::uint64_t value,
                  std::string_view object) {
  const cuda_driver& cu = cuda_driver::instance();
  cuda_driver::check(
      cu->cuStreamWaitValue64_v2(stream, address, value, cuda::CU_STREAM_WAIT_VALUE_GEQ),
      "wait",
      object,
      "cuStreamWaitValue64");
}

void enqueue(cuda::CUstream stream, std::span<const operation> what, std::string_view object) {
  if (what.empty()) {
    return;
  }
  std::array<cuda::CUstreamBatchMemOpParams, max_operations> operations{};
  std::transform(what.begin(), what.end(), operations.begin(), [](const operation& each) {
    return each.what == operation::kind::signal
               ? cuda::CUstreamBatchMemOpParams{cuda::CU_STREAM_MEM_OP_WRITE_VALUE_64,
                                                each.address,
                                                each.value,
                                                cuda::CU_STREAM_WRITE_VALUE_DEFAULT,
                                                0,
                                                0}
               : cuda::CUstreamBatchMemOpParams{cuda::CU_STREAM_MEM_OP_WAIT_VALUE_64,
                                                each.address,
                                                each.value,
                                                cuda::CU_STREAM_WAIT_VALUE_GEQ,
                                                0,
                                                0};
  });
  const cuda_driver& cu = cuda_driver::instance();
  cuda_driver::check(cu->cuStreamBatchMemOp_v2(
                         stream, static_cast<unsigned int>(what.size()), operations.data(), 0),
                     "batch",
                     object,
                     "cuStreamBatchMemOp");
}

bool is_capturing(cuda::CUstream stream) noexcept {
  cuda::CUstreamCaptureStatus status = cuda::CU_STREAM_CAPTURE_STATUS_NONE;
  const cuda_driver* const cu = cuda_driver::try_instance();
  return cu != nullptr && (*cu)->cuStreamIsCapturing(stream, &status) == cuda::CUDA_SUCCESS &&
         status == cuda::CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

}  // namespace gpushm::streams
