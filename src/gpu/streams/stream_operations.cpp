// SPDX-License-Identifier: Apache-2.0
#include "gpu/streams/stream_operations.hpp"

#include <algorithm>
#include <array>
#include <string>

#include "gpu/driver/cuda.hpp"
#include "gpushm/error.hpp"

namespace gpushm::streams {

using driver::cuda_driver;

void check_operation(cuda::CUresult result,
                     std::string_view operation,
                     std::string_view object,
                     std::string_view call) {
  if (result == cuda::CUDA_ERROR_NOT_SUPPORTED || result == cuda::CUDA_ERROR_NOT_PERMITTED) {
    throw error(errc::driver_error,
                operation,
                object,
                "streams of this GPU cannot wait for or signal shared host memory: " +
                    std::string(call) + " returned " + driver::result_text(result),
                "synchronize the stream, then signal or wait on the CPU (the calls without a "
                "stream)");
  }
  cuda_driver::check(result, operation, object, call);
}

void enqueue_signal(cuda::CUstream stream,
                    cuda::CUdeviceptr address,
                    std::uint64_t value,
                    std::string_view object) {
  const cuda_driver& cu = cuda_driver::instance();
  check_operation(
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
  check_operation(
      cu->cuStreamWaitValue64_v2(stream, address, value, cuda::CU_STREAM_WAIT_VALUE_GEQ),
      "wait",
      object,
      "cuStreamWaitValue64");
}

namespace {

using driver_operations = std::array<cuda::CUstreamBatchMemOpParams, max_operations>;

driver_operations to_driver(std::span<const operation> batch) {
  driver_operations result{};
  std::transform(batch.begin(), batch.end(), result.begin(), [](const operation& each) {
    const bool stores = each.what == operation::kind::store;
    const unsigned int flags =
        stores ? static_cast<unsigned int>(cuda::CU_STREAM_WRITE_VALUE_DEFAULT)
        : each.what == operation::kind::wait ? cuda::CU_STREAM_WAIT_VALUE_GEQ
                                             : cuda::CU_STREAM_WAIT_VALUE_AND;
    return cuda::CUstreamBatchMemOpParams{
        stores ? cuda::CU_STREAM_MEM_OP_WRITE_VALUE_64 : cuda::CU_STREAM_MEM_OP_WAIT_VALUE_64,
        each.address,
        each.value,
        flags,
        0,
        0};
  });
  return result;
}

}  // namespace

namespace {

void enqueue_together(cuda::CUstream stream,
                      std::span<const operation> batch,
                      std::string_view object) {
  driver_operations operations = to_driver(batch);
  const cuda_driver& cu = cuda_driver::instance();
  check_operation(cu->cuStreamBatchMemOp_v2(
                      stream, static_cast<unsigned int>(batch.size()), operations.data(), 0),
                  "batch",
                  object,
                  "cuStreamBatchMemOp");
}

}  // namespace

void enqueue(cuda::CUstream stream, std::span<const operation> batch, std::string_view object) {
  if (batch.empty()) {
    return;
  }
  const operation& first = batch.front();
  if (batch.size() != 1 || first.what == operation::kind::wait_any_bit) {
    enqueue_together(stream, batch, object);
  } else if (first.what == operation::kind::store) {
    enqueue_signal(stream, first.address, first.value, object);
  } else {
    enqueue_wait(stream, first.address, first.value, object);
  }
}

graph_node record(cuda::CUstream stream,
                  std::span<const operation> batch,
                  std::string_view object) {
  enqueue_together(stream, batch, object);
  const cuda_driver& cu = cuda_driver::instance();
  cuda::CUstreamCaptureStatus status = cuda::CU_STREAM_CAPTURE_STATUS_NONE;
  const cuda::CUgraphNode* last = nullptr;
  std::size_t count = 0;
  cuda_driver::check(
      cu->cuStreamGetCaptureInfo_v3(stream, &status, nullptr, nullptr, &last, nullptr, &count),
      "record",
      object,
      "cuStreamGetCaptureInfo");
  // What the stream does next depends on what was captured last, and on nothing else.
  if (status != cuda::CU_STREAM_CAPTURE_STATUS_ACTIVE || count != 1) {
    throw error(errc::driver_error,
                "record",
                object,
                "the capture has " + std::to_string(count) + " last nodes",
                "report this as a bug");
  }
  graph_node result{*last, nullptr};
  cuda_driver::check(
      cu->cuStreamGetCtx(stream, &result.context), "record", object, "cuStreamGetCtx");
  return result;
}

void set_operations(cuda::CUgraphExec executable,
                    const graph_node& node,
                    std::span<const operation> batch,
                    std::string_view object) {
  driver_operations operations = to_driver(batch);
  const cuda_driver& cu = cuda_driver::instance();
  const cuda::CUDA_BATCH_MEM_OP_NODE_PARAMS values{
      node.context, static_cast<unsigned int>(batch.size()), operations.data(), 0};
  cuda_driver::check(cu->cuGraphExecBatchMemOpNodeSetParams(executable, node.node, &values),
                     "set values",
                     object,
                     "cuGraphExecBatchMemOpNodeSetParams");
}

bool is_capturing(cuda::CUstream stream) noexcept {
  cuda::CUstreamCaptureStatus status = cuda::CU_STREAM_CAPTURE_STATUS_NONE;
  const cuda_driver* const cu = cuda_driver::try_instance();
  return cu != nullptr && (*cu)->cuStreamIsCapturing(stream, &status) == cuda::CUDA_SUCCESS &&
         status == cuda::CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

}  // namespace gpushm::streams
