// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/inspect/stopwatch.hpp"

namespace gpushm::cli {

using driver::cuda_driver;

stopwatch::stopwatch(const char* operation) : operation_(operation), cu_(cuda_driver::instance()) {
  check(cu_->cuStreamCreate(&stream_, cuda::CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  check(cu_->cuEventCreate(&start_, cuda::CU_EVENT_DEFAULT), "cuEventCreate");
  check(cu_->cuEventCreate(&end_, cuda::CU_EVENT_DEFAULT), "cuEventCreate");
}

stopwatch::~stopwatch() {
  for (cuda::CUevent const each : {start_, end_}) {
    if (each != nullptr) {
      cuda_driver::note(cu_->cuEventDestroy_v2(each), "cuEventDestroy");
    }
  }
  cuda_driver::note(cu_->cuStreamDestroy_v2(stream_), "cuStreamDestroy");
}

double stopwatch::seconds_of(cuda::CUdeviceptr target,
                             cuda::CUdeviceptr source,
                             std::uint64_t size_bytes,
                             int count) {
  check(cu_->cuEventRecord(start_, stream_), "cuEventRecord");
  for (int i = 0; i < count; ++i) {
    check(cu_->cuMemcpyDtoDAsync_v2(target, source, size_bytes, stream_), "cuMemcpyDtoDAsync");
  }
  check(cu_->cuEventRecord(end_, stream_), "cuEventRecord");
  check(cu_->cuEventSynchronize(end_), "cuEventSynchronize");
  float milliseconds = 0;
  check(cu_->cuEventElapsedTime(&milliseconds, start_, end_), "cuEventElapsedTime");
  return static_cast<double>(milliseconds) / 1e3;
}

void stopwatch::check(cuda::CUresult result, const char* call) const {
  cuda_driver::check(result, operation_, {}, call);
}

}  // namespace gpushm::cli
